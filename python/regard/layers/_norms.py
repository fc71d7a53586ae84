"""The norms of queries and keys, and their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard._arguments.numbers import finite_number
from regard.layers._linear import gradient_of_bias

if TYPE_CHECKING:
    from regard.layers._linear import FloatArray

_QK_NORM_EPS = 1e-6
_OFFSETS = {"rms": 0.0, "rms_plus_one": 1.0}


class Norm(NamedTuple):
    """The norm of queries and keys: ``x / sqrt(mean(x ** 2) + eps) * (offset + weight)``."""

    eps: float
    offset: float

    @property
    def shown(self) -> str | float:
        """The value of `qk_norm`."""
        return "rms_plus_one" if self.offset else self.eps

    @property
    def neutral(self) -> float:
        """The weight that changes nothing."""
        return 1 - self.offset


class NormResult(NamedTuple):
    """The results of the forward call that the gradient of a norm needs."""

    vectors: FloatArray  # (..., heads, head_dim), divided by their root mean square
    root: FloatArray  # the root mean square, (..., heads, 1)


def norm_of(qk_norm: str | float | None) -> Norm | None:
    """Return the norm of queries and keys, or None if there is none."""
    if qk_norm is None:
        return None
    if isinstance(qk_norm, str):
        if qk_norm not in _OFFSETS:
            raise ValueError(
                f"qk_norm must be None, 'rms', 'rms_plus_one' or an eps, got {qk_norm!r}"
            )
        return Norm(_QK_NORM_EPS, _OFFSETS[qk_norm])
    return Norm(finite_number("qk_norm", qk_norm, minimum=0), 0.0)


def normalize(x: FloatArray, eps: float) -> FloatArray:
    """Divide vectors by their root mean square, in place, and return the root mean square.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.
    https://arxiv.org/abs/1910.07467
    """
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    root: FloatArray = np.sqrt(mean + x.dtype.type(eps))
    x /= root
    return root


def gradient_of_norm(
    grad: FloatArray, factor: FloatArray, normalized: NormResult, threads: int | None
) -> FloatArray:
    """Turn the gradient of a norm's output into the gradient of its input, in place.

    Return the gradient of the weight. `factor` is the number that each component was multiplied by.

    Vectors whose gradient is 0, such as keys that no query sees, add nothing, whatever they
    contain.
    """
    vectors, root = normalized
    *_, heads, dim = grad.shape
    is_unused = ~grad.any(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        product = grad * vectors
        np.copyto(product, 0, where=is_unused)
        of_weights = gradient_of_bias(product.reshape(*grad.shape[:-2], heads * dim), threads)
        of_weight: FloatArray = of_weights.reshape(heads, dim).sum(axis=0)
        product *= factor
        grad *= factor
        grad -= vectors * np.mean(product, axis=-1, keepdims=True)
        grad /= root
        np.copyto(grad, 0, where=is_unused)
    return of_weight
