"""The encoding and the styles of a terminal, and the progress of a command on it."""

from __future__ import annotations

import codecs
import io
import os
import sys
import time

from regard._show.text import printable

# Replacements for characters that the output encoding does not contain.
_ASCII = str.maketrans(
    {"×": "x", "√": "sqrt ", "∞": "inf", "·": ".", "…": "~", "━": "="}
    | dict(zip("░▒▓█", ".:+#", strict=True))
)


def prepare_output() -> None:
    """Make stdout and stderr replace characters that their encoding does not contain."""
    codecs.register_error("regard", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="regard")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end].translate(_ASCII)
    return characters.encode("ascii", "backslashreplace").decode(), error.end


def bold(text: str, style: int = 1) -> str:
    """Emphasize text if the terminal supports styles."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return f"\x1b[{style}m{text}\x1b[0m" if is_terminal and not is_plain else text


def dim(text: str) -> str:
    """Dim text if the terminal supports styles."""
    return bold(text, 2)


class Progress:
    """A line on stderr: overwritten on a terminal, and elsewhere a new line for each step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._name = ""
        self._started = time.monotonic()
        self._is_live = sys.stderr is not None and sys.stderr.isatty()

    def show(self, message: tuple[str, str]) -> None:
        """Show the name of the current step and its part; a new name begins a new step."""
        name, part = message
        is_new = name != self._name
        self._name = name
        self._step += is_new
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        line = printable(f"{minutes}:{seconds:02} [{self._step}/{self._steps}] {name}")
        if self._is_live:
            self._overwrite(f"{line}: {part}"[:79])
        elif is_new:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Erase the line."""
        if self._is_live:
            self._overwrite("")

    def _overwrite(self, line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
