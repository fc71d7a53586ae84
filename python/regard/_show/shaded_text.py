"""The weights of one head as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._show.text import left, width_of
from regard._show.weight_table import (
    WEIGHT_WIDTH,
    header_of,
    labels_of,
    no_weights,
    shade_rows,
    weight_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._show.tokens import AxisTokens

# Lines have at most 80 columns.
_MOST_NUMBERS = 9
_MOST_SHADES = 34


def text_of_weights(title: str, weights: NDArray[Any], tokens: AxisTokens) -> str:
    """Write the first weights as numbers and, if there are more, a larger part as shades."""
    q_len, kv_len = weights.shape
    if not weights.size:
        return _joined(title, [no_weights(q_len, kv_len)])
    queries, keys = (
        [str(i) for i in range(min(size, _MOST_SHADES))] if texts is None else texts
        for size, texts in zip((q_len, kv_len), tokens, strict=True)
    )
    labels = labels_of(queries, _MOST_SHADES)
    margin = max(map(width_of, labels))
    header = left("", margin) + "  " + header_of(keys, WEIGHT_WIDTH, _MOST_NUMBERS)
    rows = weight_rows(weights, _MOST_NUMBERS)
    lines = [header, *_labeled(labels, rows, margin)]
    if max(weights.shape) > _MOST_NUMBERS:
        shades = shade_rows(weights, _MOST_SHADES)
        lines += ["", *_labeled(labels, shades, margin), "", _caption(q_len, kv_len)]
    return _joined(title, lines)


def _labeled(labels: list[str], rows: list[str], margin: int) -> list[str]:
    """Put labels before rows; the last row may be an ellipsis without a label."""
    beside = [*labels[: len(rows)], *[""] * (len(rows) - len(labels))]
    if len(rows) > _MOST_NUMBERS and rows[_MOST_NUMBERS].strip() == "…":
        beside[_MOST_NUMBERS] = "…"
    return [
        f"{left(label, margin)}  {row}".rstrip() for label, row in zip(beside, rows, strict=True)
    ]


def _caption(q_len: int, kv_len: int) -> str:
    counted = f"{q_len:,} queries and {kv_len:,} keys"
    if max(q_len, kv_len) <= _MOST_SHADES:
        return f"Of {counted}, the first are shown in numbers and all in shades."
    return f"Of {counted}, the first are shown."


def _joined(title: str, lines: list[str]) -> str:
    return "\n".join([title, *lines] if title else lines)
