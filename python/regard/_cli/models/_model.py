"""The description of a model, independent of the source of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float32]


class Model(NamedTuple):
    """A decoder of the Llama family."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float  # of the norms
    rotary: Mapping[str, Any]  # options of `regard.positional.rotary_cache`
    interleaved: bool  # whether neighboring columns are rotated
    windows: tuple[int | None, ...]  # visible tokens per layer, including the query's
    embed: Callable[[NDArray[np.int64]], Array]
    parameters: Callable[[int], Mapping[str, Array]]
    """The parameters of a layer: norm, query, key, value, output, feed_norm, gate, up, down and, if
    the model has them, query_bias, key_bias, value_bias, query_norm and key_norm."""
    tokens: Callable[[str], tuple[list[int], list[str]]]
    """The numbers and the texts of the tokens of a text."""


def shape_error(where: str, name: str, array: Any, wanted: tuple[int, ...]) -> ValueError:
    """Return the error for a parameter that does not match the model's sizes."""
    return ValueError(f"{where}: {name} must have shape {wanted}, got {array.shape}")


def spans(text: str, encoding: Any) -> list[str]:
    """Return the text of each token of an encoding.

    A token for a part of a character has the whole character. A token without text has its name.
    """
    return [
        text[first:end] if end > first else name
        for (first, end), name in zip(encoding.offsets, encoding.tokens, strict=True)
    ]
