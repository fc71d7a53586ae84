"""Text of unknown origin, and weights as rows of text: numbers with shades, or only shades."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regard._arguments.arrays import Array


WEIGHT_WIDTH = 6
_LABEL_WIDTH = 8
_ELLIPSIS_AT = 5
_SHADES = " ░▒▓█"


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


def no_weights(q_len: int, kv_len: int) -> str:
    """Report that there are no weights, and why."""
    return f"no weights: {q_len:,} queries, {kv_len:,} keys"


def ink_of(weight: float) -> float:
    """Return the darkness, from 0 to 1, of a weight from 0 to 1; NaN has no ink.

    The square root makes small weights distinguishable.
    """
    return min(weight**0.5, 1.0) if weight > 0 else 0.0


def shade_of(weight: float) -> str:
    """Return the shade character for the ink of a weight."""
    return _SHADES[min(int(ink_of(weight) * len(_SHADES)), len(_SHADES) - 1)]


def number_of(weight: float) -> str:
    """Return a weight as text; a dot means 0, such as the weight of a hidden key."""
    if weight != weight:
        return "NaN"
    return "·" if weight == 0 else f"{weight:.2f}"


def weight_rows(weights: Array, most: int) -> list[str]:
    """Write the first `most` queries and keys with numbers and shades."""
    rows = [
        " ".join(f"{shade_of(weight)} {number_of(weight):>4}" for weight in row)
        for row in weights[:most, :most].tolist()
    ]
    return with_ellipses(rows, weights, most)


def shade_rows(weights: Array, most: int) -> list[str]:
    """Write the first `most` queries and keys with only shades."""
    shown = weights[:most, :most].tolist()
    return ["".join(shade_of(weight) * 2 for weight in row).rstrip() for row in shown]


def labels_of(tokens: Sequence[str], most: int) -> list[str]:
    """Return the labels of the first `most` rows."""
    return [clip(printable(token), _LABEL_WIDTH) for token in tokens[:most]]


def header_of(tokens: Sequence[str], width: int, most: int) -> str:
    """Return a line of labels above the first `most` columns of this width."""
    return " ".join(right(clip(printable(token), width), width) for token in tokens[:most])


def with_ellipses(rows: list[str], values: Array, most: int) -> list[str]:
    """Mark omitted rows or columns with ellipses."""
    if values.shape[1] > most:
        rows = [f"{row} …" for row in rows]
    return [*rows, right("…", _ELLIPSIS_AT)] if values.shape[0] > most else rows
