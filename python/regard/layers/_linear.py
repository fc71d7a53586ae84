"""What layers with linear projections share: inputs, first parameters, products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

import numpy as np

from regard import _core
from regard._arguments import count
from regard._arrays import as_array, as_native
from regard._torch_generator import TorchGenerator

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    FloatArray: TypeAlias = NDArray[np.floating[Any]]
    Rng: TypeAlias = np.random.Generator | TorchGenerator | SupportsIndex | None


class Draws(Protocol):
    """Where first parameters come from."""

    def rand(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        """Draw from the uniform distribution on [0, 1)."""

    def randn(self, d_in: int, d_out: int, /, *, dtype: np.dtype[Any]) -> FloatArray:
        """Draw from the normal distribution."""

    def linear(
        self, d_in: int, d_out: int, bias: bool, dtype: np.dtype[Any]
    ) -> tuple[FloatArray, FloatArray | None]:
        """Draw a weight of shape (d_out, d_in) and a bias, uniform within 1 / sqrt(d_in) of 0."""


def draws(rng: Rng) -> Draws:
    """Return the draws of a TorchGenerator, or those of a NumPy generator or its seed."""
    return rng if isinstance(rng, TorchGenerator) else _NumpyDraws(rng)


class _NumpyDraws:
    def __init__(self, rng: np.random.Generator | SupportsIndex | None) -> None:
        if rng is not None and not isinstance(rng, np.random.Generator):
            if not hasattr(rng, "__index__"):
                raise TypeError(
                    "rng must be a numpy.random.Generator, a TorchGenerator, an int or None, "
                    f"got {type(rng).__name__}"
                )
            rng = count("rng", rng)
        self._generator = np.random.default_rng(rng)

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


def project(
    x: FloatArray, weight: FloatArray, bias: FloatArray | None, threads: int | None
) -> FloatArray:
    """Return ``x @ weight.T + bias`` for a weight of shape (d_out, d_in)."""
    d_out, d_in = weight.shape
    # One product over all rows, not one for each batch entry.
    rows: FloatArray = _core.matmul(
        x.reshape(math.prod(x.shape[:-1]), d_in), weight.T, None, threads
    )
    if bias is not None:
        # NaN and infinity are results, not warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            rows += bias
    return rows.reshape(*x.shape[:-1], d_out)


def vectors(name: str, x: ArrayLike, dim: int, dtype: np.dtype[Any]) -> FloatArray:
    """Return sequences of vectors, ``(..., seq, dim)``, in the dtype of a layer."""
    inputs = as_array(name, x)
    if inputs.dtype.kind not in "fiub" and inputs.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of real numbers, got {inputs.dtype}")
    if inputs.ndim < 2 or inputs.shape[-1] != dim:
        raise ValueError(f"{name} must have shape (..., seq, {dim}), got {inputs.shape}")
    return as_native(inputs, dtype)


def layer_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that the parameters of a layer may have, or raise TypeError."""
    wanted = np.dtype(dtype)
    if wanted not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {wanted}")
    return wanted
