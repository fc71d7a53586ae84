"""The description of a model, independent of the source of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.numbers import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float32]


SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space


class Model(NamedTuple):
    """A decoder of the Llama family."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float  # of the norms
    rotary: Mapping[str, Any]  # options of `regard.positional.rotary_cache`, with the columns
    interleaved: bool  # whether neighboring columns are rotated
    windows: tuple[int | None, ...]  # visible tokens per layer, including the query's
    embed: Callable[[NDArray[np.int64]], Array]
    parameters: Callable[[int], Mapping[str, Array]]
    """The parameters of a layer: norm, query, key, value, output, feed_norm, gate, up, down and, if
    the model has them, query_bias, key_bias, value_bias, query_norm and key_norm."""
    tokens: Callable[[str], tuple[list[int], list[str]]]
    """The numbers and the texts of the tokens of a text."""


class ParameterNames(NamedTuple):
    """The names of a layer's parameters in a kind of file, after the part that names the layer."""

    needed: Mapping[str, str]
    optional: Mapping[str, str]
    unknown: tuple[str, ...]
    """Parameters that would change the results but are not supported here."""

    def read(
        self,
        where: str,
        start: str,
        stored: Mapping[str, Any],
        rows: Mapping[str, int],
        columns: int,
    ) -> dict[str, Array]:
        """Return the parameters of a layer as float32 by the names of `Model.parameters`.

        `rows` are the numbers of rows of some matrices. Raises ValueError for parameters that are
        missing, not supported, or of other shapes.
        """
        missing = [start + each for each in self.needed.values() if start + each not in stored]
        unknown = [start + each for each in self.unknown if start + each in stored]
        if missing or unknown:
            layer = start.rstrip(".").rpartition(".")[2]
            raise ValueError(
                f"{where}: layer {layer} must have the parameters of a Llama model, got missing: "
                f"{listed(missing)}, unexpected: {listed(unknown)}"
            )
        own = {
            each: stored[start + place].astype(np.float32, copy=False)
            for each, place in {**self.needed, **self.optional}.items()
            if start + place in stored
        }
        for each, count in rows.items():
            if own[each].shape != (count, columns):
                raise ValueError(
                    f"{where}: {start}{self.needed[each]} must have shape {(count, columns)}, got "
                    f"{own[each].shape}"
                )
        return own


def embedded(where: str, embedding: Any, numbers: NDArray[np.int64]) -> Array:
    """Return the vectors of tokens, or raise ValueError for a token that the model lacks."""
    if numbers.max(initial=0) >= len(embedding):
        raise ValueError(
            f"{where} has token {numbers.max()}, but the model has {len(embedding)}: they belong "
            "to different models"
        )
    vectors: Array = embedding[numbers].astype(np.float32, copy=False)
    return vectors


def spans(text: str, encoding: Any) -> list[str]:
    """Return the text of each token of an encoding.

    A token for a part of a character gets the whole character. A token without text gets its name.
    """
    # The space that SentencePiece puts before a text would get the text's first character.
    return [
        " " if name == SPACE else text[first:end] if end > first else name
        for (first, end), name in zip(encoding.offsets, encoding.tokens, strict=True)
    ]
