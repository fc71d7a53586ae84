"""The gradients that are sums over rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Array


def summed_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum an array in float64 over the axes along which an array of `shape` was broadcast to it."""
    missing = array.ndim - len(shape)
    axes = tuple(
        axis
        for axis in range(array.ndim)
        if axis < missing or shape[axis - missing] != array.shape[axis]
    )
    return np.sum(array, axis=axes, dtype=np.float64, keepdims=True).reshape(shape)


def gradient_of_slopes(
    terms: Array, shape: tuple[int, ...], query_starts: NDArray[np.integer[Any]] | None
) -> Array:
    """Sum the contributions of the rows to the gradients of the ALiBi slopes.

    `terms` has the shape (..., heads, q_len), or (total_queries, heads) with `query_starts`.
    """
    if query_starts is None:
        return summed_to(np.asarray(np.sum(terms, axis=-1, dtype=np.float64)), shape)
    sequences = itertools.pairwise(query_starts)
    sums = [np.sum(terms[start:end], axis=0, dtype=np.float64) for start, end in sequences]
    return summed_to(np.reshape(sums, (len(sums), terms.shape[1])), shape)


def gradient_of_sinks(sinks: Array, lse: ArrayLike, deltas: Array, is_ragged: bool) -> Array:
    """Sum -exp(sink - lse) D over the queries and the batch."""
    lse = np.asarray(lse, order="C")
    # -inf - -inf is NaN if there is neither a sink nor a key; a wrong lse may have any value.
    with np.errstate(invalid="ignore", over="ignore"):
        # The kernels round a sink to the type of lse, which includes it.
        heads = sinks.astype(lse.dtype).reshape(-1, *(() if is_ragged else (1,)))
        share = np.exp(np.minimum(np.subtract(heads, lse, dtype=np.float64), 0))
        terms = np.where(np.isneginf(heads), 0.0, -share * deltas)
    sums = np.sum(terms, axis=0 if is_ragged else -1, dtype=np.float64)
    return summed_to(np.asarray(sums), sinks.shape)
