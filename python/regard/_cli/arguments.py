"""The parsing and rejection of command arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from regard._show.text import printable

MAX_THREADS = 4096


class Parser(argparse.ArgumentParser):
    """A parser that escapes user input in its messages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments here, because the parent parser would show its usage."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error message, and exit with status 2."""
        super().error(printable(message))


def whole_number(most: int, least: int = 1) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {number}")
        return number

    return read


def add_threads(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    help_text: str = "number of threads, the same for every engine",
) -> None:
    """Declare the thread option, which every command that computes attention has."""
    parser.add_argument(
        "--threads",
        type=whole_number(MAX_THREADS),
        metavar="N",
        help=help_text,
    )
