"""Random initial parameters of a layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng

from regard._arguments.numbers import count
from regard._random.torch_generator import TorchGenerator

if TYPE_CHECKING:
    from regard.layers._linear import FloatArray

    Rng: TypeAlias = Generator | TorchGenerator | SupportsIndex | None


class Draws(Protocol):
    """A source of random initial parameters."""

    def rand(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        """Draw from the uniform distribution on [0, 1)."""

    def randn(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        """Draw from the normal distribution."""

    def linear(
        self, d_in: int, d_out: int, bias: bool, dtype: np.dtype[Any]
    ) -> tuple[FloatArray, FloatArray | None]:
        """Draw a weight of shape (d_out, d_in) and a bias, uniform within 1 / sqrt(d_in) of 0."""


def draws(rng: Rng) -> Draws:
    """Return the source for a TorchGenerator, a NumPy generator or a seed."""
    return rng if isinstance(rng, TorchGenerator) else _NumpyDraws(rng)


class _NumpyDraws:
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
