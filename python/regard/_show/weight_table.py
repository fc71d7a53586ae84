"""Weights as rows of text: numbers with shades, or only shades."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._show.text import clip, printable, right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

WEIGHT_WIDTH = 6
_LABEL_WIDTH = 8
_ELLIPSIS_AT = 5
_SHADES = " ░▒▓█"


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
