"""The encoding and the styles of a terminal."""

from __future__ import annotations

import codecs
import io
import os
import sys

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


def bold(text: str) -> str:
    """Emphasize text if the terminal supports styles."""
    return f"\x1b[1m{text}\x1b[0m" if _has_styles() else text


def dim(text: str) -> str:
    """Dim text if the terminal supports styles."""
    return f"\x1b[2m{text}\x1b[0m" if _has_styles() else text


def _has_styles() -> bool:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    environ = os.environ
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
