"""The stages of attention as text that explains each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard._cli.stages import HEAD_DIM, SEED, Check, NotebookCheck, Stages
from regard._cli.tables import (
    MAX_TOKENS_PICTURED,
    MAX_TOKENS_SHOWN,
    number_table,
    side_by_side,
    weight_picture,
    weight_table,
)
from regard._cli.terminal import bold, dim
from regard._cli.words import EMBEDDING_DIM
from regard._show.text import clip, printable
from regard._show.weight_table import shade_of

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

    yield f"{bold('regard')} {version}  exact attention for NumPy arrays"
    yield ""
    yield f"  {bold(clip(printable(' '.join(tokens)), _SENTENCE_WIDTH))}"
    yield ""
    yield stage(1, "embedding", EMBEDDING_DIM, "each token becomes a row of numbers")
    yield stage(2, "position", EMBEDDING_DIM, f"x = embedding + ({place})")
    yield from side_by_side(
        tokens,
        number_table("embedding", stages.embedding, 2),
        number_table("position", stages.position, 2),
        number_table("x", stages.x, 2),
    )
    yield ""
    yield stage(3, "projection", HEAD_DIM, f"query, key, value = x @ W, each W {projection}")
    yield from side_by_side(
        tokens,
        number_table("query", stages.query, 4),
        number_table("key", stages.key, 4),
        number_table("value", stages.value, 4),
    )
    yield ""
    yield stage(4, "scores", length, "scores = query @ key.T")
    yield from side_by_side(tokens, number_table("scores", stages.scores, 2, columns=tokens))
    yield ""
    yield stage(5, "scaling", length, f"scaled = scores / √{HEAD_DIM}")
    yield stage(6, "mask", length, "masked = scaled, -∞ if a token would look ahead")
    yield from side_by_side(tokens, number_table("masked", stages.masked_scores, 2, columns=tokens))
    yield ""
    yield stage(7, "softmax", length, "weights = exp(masked), each row divided by its sum")
    yield stage(8, "context", HEAD_DIM, "output = weights @ value")
    yield from side_by_side(
        tokens,
        weight_table("weights", stages.weights, tokens),
        number_table("output", stages.output, 4),
    )
    yield ""
    if length > MAX_TOKENS_SHOWN:
        yield from weight_picture(stages.weights, tokens)
        yield ""
    yield "  " + "  ".join(f"{shade_of(weight)} {weight}" for weight in _LEGEND)
    yield ""
    if length > MAX_TOKENS_SHOWN:
        pictured = min(length, MAX_TOKENS_PICTURED)
        yield (
            f"  The first {MAX_TOKENS_SHOWN} tokens are shown in numbers, and the first "
            f"{pictured} of {length} in shades."
        )


def verdict(check: Check, notebook: NotebookCheck | None) -> Iterator[str]:
    """Write whether the fused call agrees, and whether the notebook's numbers are reproduced."""
    if notebook is not None:
        numbers = " ".join(f"{value:.4f}" for value in notebook.output)
        found = "as its notebook prints" if notebook.passed else "NOT what its notebook prints"
        yield f"  Without stages 2 and 6, {notebook.token} gives {numbers}, {found}."
    found = "equals" if check.passed else "DIFFERS from"
    largest = max(check.output_difference, check.weights_difference)
    yield f"  One fused call {found} the stages run one by one: largest difference {largest:.1g}."
