"""Tables side by side, with the tokens down their left."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .stages import Array
from .terminal import Terminal, left, right, width_of

INDENT = "  "
GAP = "  "
_LABEL_GAP = " "
_LABEL_WIDTH = 10
_NAME_WIDTH = 10
_CELL_WIDTH = 5


@dataclass(frozen=True)
class Table:
    """Lines for a title, perhaps headers, and a row for each token."""

    title: str
    headers: list[str]
    rows: list[str]

    @property
    def width(self) -> int:
        """The columns that the table takes."""
        return max(width_of(line) for line in (self.title, *self.headers, *self.rows))


def number_table(
    terminal: Terminal,
    title: str,
    values: Array,
    decimals: int,
    *,
    shown: int,
    across: Sequence[str] = (),
    room: int = 0,
) -> Table:
    """Lay a matrix out in right-aligned numbers.

    Parameters
    ----------
    terminal : Terminal
        Where the table goes.
    title : str
        The name above it.
    values : ndarray
        The matrix, a row for each token.
    decimals : int
        Digits behind the point.
    shown : int
        How many tokens are shown; an ellipsis stands for the others.
    across : sequence of str, optional
        All tokens, if they name the matrix's columns too.
    room : int, optional
        How wide a table with tokens across may be.

    Returns
    -------
    Table
        The table.
    """
    wide = values.shape[1]
    if across and (shown < wide or (_CELL_WIDTH + 1) * wide - 1 > room):
        wide = max(1, min(shown, (room - 1) // (_CELL_WIDTH + 1)))  # and the ellipsis
    cells = [[_number(terminal, value, decimals) for value in row[:wide]] for row in values[:shown]]
    width = max(_CELL_WIDTH, *(width_of(cell) for row in cells for cell in row))
    rows = [" ".join(right(cell, width) for cell in row) for row in cells]
    headers = []
    if across:
        names = [right(terminal.label(name, width), width) for name in across[:wide]]
        headers = [terminal.dim(" ".join(names))]
    if wide < values.shape[1]:
        rows = [f"{row} {terminal.glyphs.ellipsis}" for row in rows]
    if shown < len(values):
        rows.append(right(terminal.glyphs.ellipsis, width))
    return Table(title, headers, rows)


def _number(terminal: Terminal, value: np.floating, decimals: int) -> str:
    return terminal.dim(terminal.glyphs.infinity) if np.isneginf(value) else f"{value:.{decimals}f}"


def row_labels(terminal: Terminal, tokens: Sequence[str], shown: int) -> list[str]:
    """Give the tokens down the left of a table that shows `shown` of them."""
    labels = [terminal.label(token, _LABEL_WIDTH) for token in tokens[:shown]]
    if shown < len(tokens):
        labels.append(terminal.glyphs.ellipsis)
    return labels


def margin_of(labels: Sequence[str]) -> int:
    """Give the columns that labels take left of their tables."""
    return len(INDENT) + max(width_of(label) for label in labels) + len(_LABEL_GAP)


def side_by_side(terminal: Terminal, labels: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Put as many tables next to each other as fit, and the others below them.

    Parameters
    ----------
    terminal : Terminal
        Where the tables go.
    labels : sequence of str
        What stands left of the rows.
    tables : sequence of Table
        The tables, each with a row for each label.

    Returns
    -------
    list of str
        The lines.
    """
    lines: list[str] = []
    waiting = list(tables)
    while waiting:
        beside = [waiting.pop(0)]
        used = margin_of(labels) + beside[0].width
        while waiting and used + len(GAP) + waiting[0].width <= terminal.columns:
            used += len(GAP) + waiting[0].width
            beside.append(waiting.pop(0))
        lines += _join(terminal, labels, beside)
    return lines


def _join(terminal: Terminal, labels: Sequence[str], tables: Sequence[Table]) -> list[str]:
    above = 1 + max(len(table.headers) for table in tables)
    # A table without headers has its title right above its rows.
    blocks = [
        [""] * (above - 1 - len(table.headers))
        + [terminal.bold(table.title), *table.headers, *table.rows]
        for table in tables
    ]
    padded = [
        [left(line, table.width) for line in block]
        for table, block in zip(tables, blocks, strict=True)
    ]
    margin = margin_of(labels)
    beginnings = [""] * above + [INDENT + label for label in labels]
    return [
        left(beginning, margin) + GAP.join(cells)
        for beginning, *cells in zip(beginnings, *padded, strict=True)
    ]


def heading(terminal: Terminal, number: int, name: str, shape: str, formula: str) -> list[str]:
    """Name a stage in a line, or in more where the terminal is narrow.

    Parameters
    ----------
    terminal : Terminal
        Where the line goes.
    number : int
        Which stage it is.
    name : str
        Its name.
    shape : str
        The shape of its result.
    formula : str
        What it computes.

    Returns
    -------
    list of str
        The lines.
    """
    named = f"{terminal.accent(str(number))} {terminal.bold(left(name, _NAME_WIDTH))}"
    begin = f"{named}{GAP}{terminal.dim(shape)}{GAP}"
    if width_of(begin) + width_of(formula) <= terminal.columns:
        return [begin + formula]
    return [begin, *paragraph(terminal, formula)]


def paragraph(terminal: Terminal, text: str) -> list[str]:
    """Break unstyled text into indented lines."""
    return textwrap.wrap(text, terminal.columns, initial_indent=INDENT, subsequent_indent=INDENT)


def in_lines(pieces: Sequence[str], room: int) -> list[str]:
    """Put pieces, which may be styled, into lines of at most `room` columns."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if width_of(lines[-1]) + len(GAP) + width_of(piece) <= room:
            lines[-1] += GAP + piece
        else:
            lines.append(piece)
    return lines
