"""Matrices as text, with the tokens down their left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard._text import clip, left, printable, right, width_of

from .stages import Array
from .terminal import bold, dim

# Longer sentences are shown in part: their numbers, and their weights as a picture.
MAX_TOKENS_SHOWN = 6
MAX_TOKENS_PICTURED = 24
_LABEL_WIDTH = 8
_CELL_WIDTH = 5
_WEIGHT_WIDTH = 6
_SHADES = " ░▒▓█"


@dataclass(frozen=True)
class Table:
    """A title, perhaps a header, and a row for each token that is shown."""

    title: str
    header: str
    rows: list[str]


def number_table(title: str, values: Array, decimals: int, *, columns: Sequence[str] = ()) -> Table:
    """Write a matrix that has a row for each token, and where they are given a column for each."""
    shown = values[:MAX_TOKENS_SHOWN, :MAX_TOKENS_SHOWN]
    cells = [["-∞" if np.isneginf(x) else f"{x:.{decimals}f}" for x in row] for row in shown]
    width = max(_CELL_WIDTH, *(len(cell) for row in cells for cell in row))
    rows = [" ".join(cell.rjust(width) for cell in row) for row in cells]
    return _with_ellipses(Table(title, _header(columns, width), rows), values)


def weight_table(title: str, weights: Array, tokens: Sequence[str]) -> Table:
    """Write causal weights, each with a shade that grows with it."""
    shown = weights[:MAX_TOKENS_SHOWN, :MAX_TOKENS_SHOWN]
    rows = [
        " ".join(
            f"{shade_of(weight)} {weight:.2f}" if key <= query else "·".rjust(_WEIGHT_WIDTH)
            for key, weight in enumerate(row)
        )
        for query, row in enumerate(shown.tolist())
    ]
    return _with_ellipses(Table(title, _header(tokens, _WEIGHT_WIDTH), rows), weights)


def weight_picture(weights: Array, tokens: Sequence[str]) -> list[str]:
    """Write causal weights as shades alone, a row for each token."""
    labels = _labels(tokens, MAX_TOKENS_PICTURED)
    margin = max(map(width_of, labels))
    rows = weights[:MAX_TOKENS_PICTURED, :MAX_TOKENS_PICTURED].tolist()
    return [
        f"  {left(label, margin)}  " + "".join(shade_of(weight) * 2 for weight in row).rstrip()
        for label, row in zip(labels, rows, strict=True)
    ]


def shade_of(weight: float) -> str:
    """Return the character whose ink is that of a weight from 0 to 1; NaN has none."""
    # The square root keeps small weights apart.
    return _SHADES[min(int(weight**0.5 * len(_SHADES)), len(_SHADES) - 1)] if weight > 0 else " "


def side_by_side(tokens: Sequence[str], *tables: Table) -> list[str]:
    """Put tables next to each other, with the tokens as labels of their rows."""
    labels = _labels(tokens, MAX_TOKENS_SHOWN)
    if len(tokens) > MAX_TOKENS_SHOWN:
        labels.append("…")
    margin = max(map(width_of, labels))
    lines = [""] * (len(labels) + 2)
    for table in tables:
        width = max(map(width_of, (table.title, table.header, *table.rows)))
        styled = [bold(table.title) + " " * (width - width_of(table.title))]
        styled.append(dim(left(table.header, width)))
        styled += [left(row, width) for row in table.rows]
        lines = [f"{line}  {cell}" for line, cell in zip(lines, styled, strict=True)]
    if not any(table.header for table in tables):
        del lines[1]
    labels = [""] * (len(lines) - len(labels)) + labels
    return [
        f"  {left(label, margin)}{line}".rstrip() for label, line in zip(labels, lines, strict=True)
    ]


def _labels(tokens: Sequence[str], most: int) -> list[str]:
    return [clip(printable(token), _LABEL_WIDTH) for token in tokens[:most]]


def _header(tokens: Sequence[str], width: int) -> str:
    names = [right(clip(printable(token), width), width) for token in tokens[:MAX_TOKENS_SHOWN]]
    return " ".join(names)


def _with_ellipses(table: Table, values: Array) -> Table:
    rows = table.rows
    if values.shape[1] > MAX_TOKENS_SHOWN:
        rows = [f"{row} …" for row in rows]
    if values.shape[0] > MAX_TOKENS_SHOWN:
        rows = [*rows, right("…", _CELL_WIDTH)]
    return Table(table.title, table.header, rows)
