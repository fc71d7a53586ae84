"""Text that any terminal takes: its encoding, its styles, its width, and nothing hostile."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

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
    """Emphasise text where the terminal can."""
    return f"\x1b[1m{text}\x1b[0m" if _has_styles() else text


def dim(text: str) -> str:
    """Subdue text where the terminal can."""
    return f"\x1b[2m{text}\x1b[0m" if _has_styles() else text


def _has_styles() -> bool:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    environ = os.environ
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def printable(raw: str) -> str:
    """Escape control characters, surrogates and the like, and drop marks that only format.

    A terminal acts on what it is sent: no text of the user's reaches it unescaped.
    """
    seen = "".join(_escape(char) for char in raw if unicodedata.category(char) != "Cf")
    return seen or raw.encode("unicode_escape").decode("ascii")


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def width_of(text: str) -> int:
    """Return how many columns unstyled text takes."""
    return sum(_width_of_char(char) for char in text)


def _width_of_char(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Shorten unstyled text to at most `width` columns, with an ellipsis where it is cut."""
    if width_of(text) <= width:
        return text
    kept = ""
    for char in text:
        if width_of(kept + char) >= width:
            break
        kept += char
    return kept + "…"


def left(text: str, width: int) -> str:
    """Pad unstyled text on its right."""
    return text + " " * (width - width_of(text))


def right(text: str, width: int) -> str:
    """Pad unstyled text on its left."""
    return " " * (width - width_of(text)) + text
