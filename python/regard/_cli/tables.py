"""Matrices as text, with the tokens as row labels on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard._cli.stages import Array
from regard._cli.terminal import bold, dim
from regard._show.text import left, width_of
from regard._show.weight_table import (
    WEIGHT_WIDTH,
    header_of,
    labels_of,
    shade_rows,
    weight_rows,
    with_ellipses,
)

# For longer sentences, only some numbers are shown, and the weights are a picture.
MAX_TOKENS_SHOWN = 6
MAX_TOKENS_PICTURED = 24
_CELL_WIDTH = 5


@dataclass(frozen=True)
class Table:
    """A title, an optional header, and a row for each shown token."""

    title: str
    header: str
    rows: list[str]


def number_table(title: str, values: Array, decimals: int, *, columns: Sequence[str] = ()) -> Table:
    """Write a matrix with a row for each token and, if column names are given, a header."""
    shown = values[:MAX_TOKENS_SHOWN, :MAX_TOKENS_SHOWN]
    cells = [["-∞" if np.isneginf(x) else f"{x:.{decimals}f}" for x in row] for row in shown]
    width = max(_CELL_WIDTH, *(len(cell) for row in cells for cell in row))
    rows = [" ".join(cell.rjust(width) for cell in row) for row in cells]
    header = header_of(columns, width, MAX_TOKENS_SHOWN)
    return Table(title, header, with_ellipses(rows, values, MAX_TOKENS_SHOWN))


def weight_table(title: str, weights: Array, tokens: Sequence[str]) -> Table:
    """Write weights, with shades that darken with the weight."""
    header = header_of(tokens, WEIGHT_WIDTH, MAX_TOKENS_SHOWN)
    return Table(title, header, weight_rows(weights, MAX_TOKENS_SHOWN))


def weight_picture(weights: Array, tokens: Sequence[str]) -> list[str]:
    """Write weights as shades without numbers, a row for each token."""
    labels = labels_of(tokens, MAX_TOKENS_PICTURED)
    margin = max(map(width_of, labels))
    rows = shade_rows(weights, MAX_TOKENS_PICTURED)
    return [f"  {left(label, margin)}  {row}" for label, row in zip(labels, rows, strict=True)]


def side_by_side(tokens: Sequence[str], *tables: Table) -> list[str]:
    """Put tables next to each other, with the tokens as labels of their rows."""
    labels = labels_of(tokens, MAX_TOKENS_SHOWN)
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
