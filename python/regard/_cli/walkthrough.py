"""The stages of attention as text that explains each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard._cli.stages import EMBEDDING_DIM, HEAD_DIM, SEED, Array, Stages
from regard._cli.terminal import bold, dim
from regard._show.text import (
    WEIGHT_WIDTH,
    clip,
    header_of,
    labels_of,
    left,
    printable,
    shade_of,
    shade_rows,
    weight_rows,
    width_of,
    with_ellipses,
)

# For longer sentences, only some numbers are shown, and the weights are a picture.
MAX_TOKENS_SHOWN = 6
MAX_TOKENS_PICTURED = 24
_CELL_WIDTH = 5
_SENTENCE_WIDTH = 76
_LEGEND = (0.05, 0.2, 0.4, 0.7)


def walkthrough(version: str, tokens: Sequence[str], stages: Stages) -> Iterator[str]:
    """Write the computation from the words to the context vectors, a line at a time."""
    length = len(tokens)
    projection = f"randn({EMBEDDING_DIM}, {HEAD_DIM}), seed {SEED}"
    place = f"sin t, cos t, sin(t/10000^(2/{EMBEDDING_DIM}))"

    def stage(number: int, name: str, columns: int, formula: str) -> str:
        shape = f"{length} × {columns}".ljust(len(f"{length} × {length}"))
        return f"{number} {bold(name.ljust(10))}  {dim(shape)}  {formula}"

    def tables(*names: str, decimals: int, columns: Sequence[str] = ()) -> Iterator[str]:
        shown = [(name.partition("_")[0], stages[name]) for name in names]
        made = [number_table(title, array, decimals, columns) for title, array in shown]
        yield from side_by_side(tokens, *made)
        yield ""

    yield f"{bold('regard')} {version}  exact attention for NumPy arrays"
    yield ""
    yield f"  {bold(clip(printable(' '.join(tokens)), _SENTENCE_WIDTH))}"
    yield ""
    yield stage(1, "embedding", EMBEDDING_DIM, "each token becomes a row of numbers")
    yield stage(2, "position", EMBEDDING_DIM, f"x = embedding + ({place})")
    yield from tables("embedding", "position", "x", decimals=2)
    yield stage(3, "projection", HEAD_DIM, f"query, key, value = x @ W, each W {projection}")
    yield from tables("query", "key", "value", decimals=4)
    yield stage(4, "scores", length, "scores = query @ key.T")
    yield from tables("scores", decimals=2, columns=tokens)
    yield stage(5, "scaling", length, f"scaled = scores / √{HEAD_DIM}")
    yield stage(6, "mask", length, "masked = scaled, -∞ if a token would look ahead")
    yield from tables("masked_scores", decimals=2, columns=tokens)
    yield stage(7, "softmax", length, "weights = exp(masked), each row divided by its sum")
    yield stage(8, "context", HEAD_DIM, "output = weights @ value")
    weights = stages["weights"]
    output = number_table("output", stages["output"], 4)
    yield from side_by_side(tokens, weight_table("weights", weights, tokens), output)
    yield ""
    if length > MAX_TOKENS_SHOWN:
        labels = labels_of(tokens, MAX_TOKENS_PICTURED)
        margin = max(map(width_of, labels))
        for label, row in zip(labels, shade_rows(weights, MAX_TOKENS_PICTURED), strict=True):
            yield f"  {left(label, margin)}  {row}"
        yield ""
    yield "  " + "  ".join(f"{shade_of(weight)} {weight}" for weight in _LEGEND)
    yield ""
    if length > MAX_TOKENS_SHOWN:
        pictured = min(length, MAX_TOKENS_PICTURED)
        yield (
            f"  The first {MAX_TOKENS_SHOWN} tokens are shown in numbers, and the first "
            f"{pictured} of {length} in shades."
        )


def verdict(check: dict[str, Any], notebook: dict[str, Any] | None) -> Iterator[str]:
    """Write whether the fused call agrees, and whether the notebook's numbers are reproduced."""
    if notebook is not None:
        numbers = " ".join(f"{value:.4f}" for value in notebook["output"])
        found = "as its notebook prints" if notebook["passed"] else "NOT what its notebook prints"
        yield f"  Without stages 2 and 6, {notebook['token']} gives {numbers}, {found}."
    found = "equals" if check["passed"] else "DIFFERS from"
    largest = max(check["output_difference"], check["weights_difference"])
    yield f"  One fused call {found} the stages run one by one: largest difference {largest:.1g}."


class Table(NamedTuple):
    """A title, a header that may be empty, and a row for each shown token."""

    title: str
    header: str
    rows: list[str]


def number_table(title: str, values: Array, decimals: int, columns: Sequence[str] = ()) -> Table:
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


def side_by_side(tokens: Sequence[str], *tables: Table) -> list[str]:
    """Put tables next to each other, with the tokens as labels of their rows."""
    labels = ["", "", *labels_of(tokens, MAX_TOKENS_SHOWN)]
    if len(tokens) > MAX_TOKENS_SHOWN:
        labels.append("…")
    margin = max(map(width_of, labels))
    lines = [f"  {left(label, margin)}" for label in labels]
    for title, header, rows in tables:
        width = max(map(width_of, (title, header, *rows)))
        styled = [bold(title) + " " * (width - width_of(title)), dim(left(header, width))]
        styled += [left(row, width) for row in rows]
        lines = [f"{line}  {cell}" for line, cell in zip(lines, styled, strict=True)]
    if not any(table.header for table in tables):
        del lines[1]
    return [line.rstrip() for line in lines]
