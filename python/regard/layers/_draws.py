"""Random initial parameters of a layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng

from regard._arguments.numbers import count
from regard._random.torch_generator import TorchGenerator
from regard.layers._projections import INPUTS, LayerSizes

if TYPE_CHECKING:
    from regard.layers._linear import FloatArray
    from regard.layers._norms import Norm

    Draws: TypeAlias = "TorchGenerator | _NumpyDraws"
    Rng: TypeAlias = Generator | TorchGenerator | SupportsIndex | None


def draws(rng: Rng) -> Draws:
    """Return the source for a TorchGenerator, a NumPy generator or a seed."""
    return rng if isinstance(rng, TorchGenerator) else _NumpyDraws(rng)


class _NumpyDraws:
    """Draws as a `TorchGenerator` does, from a NumPy generator."""

    def __init__(self, rng: Generator | SupportsIndex | None) -> None:
        if rng is not None and not isinstance(rng, Generator):
            if not hasattr(rng, "__index__"):
                raise TypeError(
                    "rng must be a numpy.random.Generator, a TorchGenerator, an int or None, "
                    f"got {type(rng).__name__}"
                )
            rng = count("rng", rng)
        self._generator = default_rng(rng)

    def rand(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        return self._generator.random((d_in, d_out), dtype.type)

    def randn(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        return self._generator.standard_normal((d_in, d_out), dtype.type)

    def linear(
        self, d_in: int, d_out: int, bias: bool, dtype: np.dtype[Any]
    ) -> tuple[FloatArray, FloatArray | None]:
        bound = 1 / math.sqrt(d_in)
        weight = (2 * self._generator.random((d_out, d_in), dtype.type) - 1) * bound
        if not bias:
            return weight, None
        return weight, (2 * self._generator.random(d_out, dtype.type) - 1) * bound


def draw(
    sizes: LayerSizes,
    source: Draws,
    *,
    qkv_bias: bool,
    out_bias: bool,
    norm: Norm | None,
    distance_bias: Any,
    head_gates: bool,
    dtype: np.dtype[Any],
) -> dict[str, FloatArray]:
    """Draw the query, key, value and out layers.

    Norms and head gates multiply by 1 at first, and biases of distances are 0.
    """
    if np.ndim(distance_bias):
        raise TypeError(
            "distance_bias must be an int, the number of distances on a side, got an array of "
            f"shape {np.shape(distance_bias)}: load_state_dict() writes its numbers"
        )
    if distance_bias is not None:
        distances = count("distance_bias", distance_bias, minimum=1)
    joined = sizes.heads * sizes.head_dim
    linears = [
        (name, d_in, heads * sizes.head_dim, qkv_bias)
        for name, d_in, heads in zip(INPUTS, sizes.inputs, sizes.counts, strict=True)
    ]
    own: dict[str, FloatArray] = {}
    for name, d_in, d_out, has_bias in [*linears, ("out", joined, sizes.inputs[0], out_bias)]:
        weight, bias = source.linear(d_in, d_out, has_bias, dtype)
        own[f"W_{name}"] = weight
        if bias is not None:
            own[f"b_{name}"] = bias
    if norm is not None:
        neutral = np.full(sizes.head_dim, norm.neutral, dtype)
        own |= {f"norm_{name}": neutral.copy() for name in INPUTS[:2]}
    if distance_bias is not None:
        own["distance_bias"] = np.zeros((sizes.heads, 2 * distances - 1), dtype)
    if head_gates:
        own["head_gates"] = np.ones(sizes.heads, dtype)
    return own
