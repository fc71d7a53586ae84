"""How arguments are read, and what is said about wrong ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from .terminal import printable

MAX_THREADS = 4096


class Parser(argparse.ArgumentParser):
    """A parser whose messages repeat nothing raw of what was typed."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with exit status 2."""
        super().error(printable(message))


def whole_number(most: int) -> Callable[[str], int]:
    """Give what reads a whole number from 1 to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"must be from 1 to {most}, got {number}")
        return number

    return read
