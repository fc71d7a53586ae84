"""Checks of the input vectors of a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, as_native, is_floating
from regard._arguments.numbers import batch_integers, offsets
from regard.layers._projections import INPUTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard.layers._linear import FloatArray


def inputs_of(
    query: ArrayLike,
    key: ArrayLike | None,
    value: ArrayLike | None,
    sizes: tuple[int, int, int],
    dtype: np.dtype[Any],
) -> list[FloatArray]:
    """Return the three inputs of a layer, as one array if they are the same."""
    if key is None and value is not None:
        raise ValueError("value needs key, got only value")
    key = query if key is None else key
    value = key if value is None else value
    sources = [vectors("query", query, sizes[0], dtype)]
    for i, (x, before) in enumerate(((key, query), (value, key)), start=1):
        is_same = x is before and sizes[i] == sizes[i - 1]
        sources.append(sources[-1] if is_same else vectors(INPUTS[i], x, sizes[i], dtype))
    return sources


def numeric_offset(
    query_offset: ArrayLike, key_lengths: ArrayLike | None, query: FloatArray, kv_len: int
) -> ArrayLike:
    """Return an offset, with "end" as the numbers that align the last query and the last key."""
    if not isinstance(query_offset, str):
        return query_offset
    lengths = batch_integers(
        "key_lengths", kv_len if key_lengths is None else key_lengths, query.shape[:-3]
    )
    return offsets(query_offset, lengths - query.shape[-2])


def vectors(name: str, x: ArrayLike, dim: int, dtype: np.dtype[Any]) -> FloatArray:
    """Return an array ``(..., seq, dim)`` in a layer's dtype, or raise TypeError or ValueError."""
    inputs = as_array(name, x)
    if inputs.dtype.kind not in "iub" and not is_floating(inputs.dtype):
        raise TypeError(f"{name} must be an array of real numbers, got {inputs.dtype}")
    if inputs.ndim < 2 or inputs.shape[-1] != dim:
        raise ValueError(f"{name} must have shape (..., seq, {dim}), got {inputs.shape}")
    return as_native(inputs, dtype)
