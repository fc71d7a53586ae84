"""The width of text of unknown origin, and escapes for its control characters."""

from __future__ import annotations

import unicodedata


def printable(raw: str) -> str:
    """Escape control characters, surrogates and the like, and drop formatting marks.

    A terminal obeys control characters, so user text must never reach it unescaped.
    """
    seen = "".join(_escape(char) for char in raw if unicodedata.category(char) != "Cf")
    return seen or raw.encode("unicode_escape").decode("ascii")


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def width_of(text: str) -> int:
    """Return the width of unstyled text in columns."""
    return sum(_width_of_char(char) for char in text)


def _width_of_char(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, width: int) -> str:
    """Shorten unstyled text to at most `width` columns, with an ellipsis if it is cut."""
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
