"""The width of text of unknown origin, and escapes for its control characters."""

from __future__ import annotations

import unicodedata


def printable(raw: str) -> str:
    """Escape control characters, surrogates and the like, and drop formatting marks.

    A terminal obeys control characters, so user text must never reach it unescaped.
    """

    def escaped(text: str) -> str:
        return text.encode("unicode_escape").decode("ascii")

    seen = (char for char in raw if unicodedata.category(char) != "Cf")
    return "".join(c if c.isprintable() else escaped(c) for c in seen) or escaped(raw)


def width_of(text: str) -> int:
    """Return the width of unstyled text in columns."""
    return sum(
        1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
        if unicodedata.category(char) not in ("Mn", "Me")
    )


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
