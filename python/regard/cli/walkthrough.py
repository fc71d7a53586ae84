"""The stages of attention, shown so that a person sees what happens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .grid import legend, shown_in_grid, weights_grid
from .layout import (
    GAP,
    INDENT,
    Table,
    heading,
    in_lines,
    margin_of,
    number_table,
    paragraph,
    row_labels,
    side_by_side,
)
from .stages import HEAD_DIM, SEED, Check, NotebookCheck, Stages
from .terminal import Terminal, left
from .words import EMBEDDING_DIM

_SHOWN_WHOLE = 8
_SHOWN_OF_MORE = 6


def show_title(terminal: Terminal, version: str, tokens: Sequence[str]) -> None:
    """Write what this is, and the sentence.

    Parameters
    ----------
    terminal : Terminal
        Where it goes.
    version : str
        The version of regard.
    tokens : sequence of str
        The sentence.
    """
    sentence = terminal.label(" ".join(tokens), terminal.columns - len(INDENT))
    name = f"{terminal.bold('regard')} {version}"
    motto = terminal.dim("exact attention for NumPy arrays")
    lines = in_lines([name, motto], terminal.columns)
    terminal.write(*lines, "", INDENT + terminal.bold(sentence), "")


def show_stages(terminal: Terminal, tokens: Sequence[str], stages: Stages) -> None:
    """Write the way from the words to the context vectors.

    Parameters
    ----------
    terminal : Terminal
        Where it goes.
    tokens : sequence of str
        The sentence.
    stages : Stages
        What each stage gives.
    """
    length = len(tokens)
    shown = length if length <= _SHOWN_WHOLE else _SHOWN_OF_MORE
    labels = row_labels(terminal, tokens, shown)
    glyphs = terminal.glyphs
    projection = f"randn({EMBEDDING_DIM}, {HEAD_DIM}), seed {SEED}"
    place = f"sin t, cos t, sin(t/10000^(2/{EMBEDDING_DIM}))"

    def shape(columns: int) -> str:
        widest = f"{length} {glyphs.times} {length}"
        return left(f"{length} {glyphs.times} {columns}", len(widest))

    def tables(*some: Table) -> list[str]:
        return [*side_by_side(terminal, labels, some), ""]

    head = partial(heading, terminal)
    numbers = partial(number_table, terminal, shown=shown)
    scores = partial(numbers, across=tokens, room=terminal.columns - margin_of(labels))

    terminal.write(
        *head(1, "embedding", shape(EMBEDDING_DIM), "each token becomes a row of numbers"),
        *head(2, "position", shape(EMBEDDING_DIM), f"x = embedding + ({place})"),
        *tables(
            numbers("embedding", stages.embedding, 2),
            numbers("position", stages.position, 2),
            numbers("x", stages.x, 2),
        ),
        *head(3, "projection", shape(HEAD_DIM), f"query, key, value = x @ W, each W {projection}"),
        *tables(
            numbers("query", stages.query, 4),
            numbers("key", stages.key, 4),
            numbers("value", stages.value, 4),
        ),
        *head(4, "scores", shape(length), "scores = query @ key.T"),
        *head(5, "scaling", shape(length), f"scaled = scores / {glyphs.root}{HEAD_DIM}"),
        *head(
            6,
            "mask",
            shape(length),
            f"masked = scaled, {glyphs.infinity} where a token would look ahead",
        ),
        *tables(
            scores("scores", stages.scores, 2),
            scores("scaled and masked", stages.masked_scores, 2),
        ),
        *head(7, "softmax", shape(length), "weights = exp(masked), each row divided by its sum"),
        *head(8, "context", shape(HEAD_DIM), "output = weights @ value"),
        *_weights_and_output(terminal, tokens, stages),
        "",
    )


def _weights_and_output(terminal: Terminal, tokens: Sequence[str], stages: Stages) -> list[str]:
    length = len(tokens)
    room = terminal.columns - margin_of(row_labels(terminal, tokens, length))
    shown = shown_in_grid(length, room)
    labels = row_labels(terminal, tokens, shown)
    output = number_table(terminal, "output", stages.output, 4, shown=shown)
    # The output stands beside the grid, unless the grid shows more of the tokens without it.
    beside = room - len(GAP) - output.width
    if shown_in_grid(length, beside) == shown:
        room = beside
    grid = weights_grid(terminal, "weights", tokens, stages.weights, room)
    lines = side_by_side(terminal, labels, [grid, output])
    margin = margin_of(labels)
    shades = in_lines(legend(terminal), terminal.columns - margin)
    lines += ["", *(" " * margin + line for line in shades)]
    if shown < length:
        note = f"The first {shown} of {length} tokens are shown; all of them are computed."
        lines += ["", *paragraph(terminal, note)]
    return lines


def show_checks(terminal: Terminal, check: Check, notebook: NotebookCheck | None) -> None:
    """Write whether the fused call gives the same, and the notebook's own numbers.

    Parameters
    ----------
    terminal : Terminal
        Where it goes.
    check : Check
        The fused call beside the stages.
    notebook : NotebookCheck or None
        The numbers of the notebook, if the sentence is the notebook's.
    """
    if notebook is not None:
        numbers = " ".join(f"{value:.4f}" for value in notebook.output)
        verdict = "as its notebook prints" if notebook.passed else "NOT what its notebook prints"
        note = f"Without stages 2 and 6, {notebook.token} gives {numbers}, {verdict}."
        terminal.write(*paragraph(terminal, note))
    verdict = "equals the stages" if check.passed else "DIFFERS from the stages"
    largest = max(check.output_difference, check.weights_difference)
    note = f"One fused call {verdict} run one by one: largest difference {largest:.1g}."
    terminal.write(*paragraph(terminal, note))
