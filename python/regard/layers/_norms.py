"""Division by the root mean square: the function, and the norms of queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

from regard._arguments.arrays import as_native, compute_type, stored
from regard._arguments.numbers import finite_number
from regard.layers._linear import gradient_of_bias

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard.layers._linear import FloatArray

_QK_NORM_EPS = 1e-6
_OFFSETS = {"rms": 0.0, "rms_plus_one": 1.0}


def rms_norm(
    x: ArrayLike, weight: ArrayLike | None = None, eps: SupportsFloat = 1e-6
) -> FloatArray:
    r"""Divide vectors by their root mean square, and multiply them by a weight.

    .. math:: y = \frac{x}{\sqrt{\operatorname{mean}(x^2) + \epsilon}} \, w

    from Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.

    Parameters
    ----------
    x : array_like, shape (..., dim)
        Vectors, along the last axis. float16 and bfloat16 are computed in float32.
    weight : array_like, shape (dim,), optional
        One factor for each component; 1 by default. Gemma's first three versions, Qwen3-Next and
        Qwen3.5 multiply by 1 + weight: pass the sum. GGUF files of them contain the sum.
    eps : float, default 1e-6
        Added to the mean square. Model configurations specify it (``rms_norm_eps``).

    Returns
    -------
    ndarray, shape (..., dim)
        Has the type of `x`.

    Raises
    ------
    TypeError
        If an argument does not consist of real numbers.
    ValueError
        If `x` has no axes, `weight` has another shape, or `eps` is negative or not finite.

    Examples
    --------
    >>> import regard
    >>> regard.layers.rms_norm([3.0, -4.0], eps=0)
    array([ 0.84852814, -1.13137085])
    """
    given = stored("x", x)
    wide = as_native(given, compute_type(given.dtype))
    if given.ndim == 0:
        raise ValueError("x must have at least one axis, got a number")
    small = finite_number("eps", eps, minimum=0)
    if given.shape[-1] == 0:
        return given.copy()
    with np.errstate(invalid="ignore", divide="ignore", over="ignore", under="ignore"):
        # Squares of float32 fit into float64. Squares of float64 do if the largest number is 1.
        largest: Any = 1.0
        if wide.dtype == np.float64:
            largest = np.abs(wide).max(axis=-1, keepdims=True)
            largest = np.where(np.isfinite(largest) & (largest > 0), largest, 1.0)
            wide = wide / largest
        mean = np.mean(np.square(wide, dtype=np.float64), axis=-1, keepdims=True)
        root = np.hypot(np.sqrt(mean), np.sqrt(small) / largest)
        result: FloatArray = wide / root.astype(wide.dtype)
        if weight is not None:
            factors = stored("weight", weight)
            if factors.shape != given.shape[-1:]:
                raise ValueError(f"weight must be {given.shape[-1:]}, got shape {factors.shape}")
            result *= factors.astype(wide.dtype, copy=False)
        return result.astype(given.dtype, copy=False)


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
