"""What a terminal takes: its encoding and its styles."""

from __future__ import annotations

import codecs
import io
import os
import sys

# What is shown for a character that the encoding of the output does not have.
_ASCII = str.maketrans(
    {"×": "x", "√": "sqrt ", "∞": "inf", "·": ".", "…": "~", "━": "="}
    | dict(zip("░▒▓█", ".:+#", strict=True))
)


def prepare_output() -> None:
    """Let stdout and stderr replace the characters that their encoding does not have."""
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
    """Emphasize text where the terminal can."""
    return f"\x1b[1m{text}\x1b[0m" if _has_styles() else text


def dim(text: str) -> str:
    """Subdue text where the terminal can."""
    return f"\x1b[2m{text}\x1b[0m" if _has_styles() else text


def _has_styles() -> bool:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    environ = os.environ
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
