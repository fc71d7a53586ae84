"""The arguments of a call: checks, copies in train mode, and recordings of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, as_native, is_floating
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import integers
from regard._arguments.option_table import OPTIONS
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard.layers._projections import INPUTS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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


def vectors(name: str, x: ArrayLike, dim: int, dtype: np.dtype[Any]) -> FloatArray:
    """Return an array ``(..., seq, dim)`` in a layer's dtype, or raise TypeError or ValueError."""
    inputs = real_array(name, x)
    if inputs.ndim < 2 or inputs.shape[-1] != dim:
        raise ValueError(f"{name} must have shape (..., seq, {dim}), got {inputs.shape}")
    return as_native(inputs, dtype)


def real_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array of real numbers of any dtype, or raise TypeError."""
    array = as_array(name, value)
    if array.dtype.kind not in "iub" and not is_floating(array.dtype):
        raise TypeError(f"{name} must be an array of real numbers, got {array.dtype}")
    return array


def held_inputs(sources: list[FloatArray]) -> list[FloatArray]:
    """Copy the inputs of a call in train mode, so that callers may change their arrays.

    There is one copy for inputs that are the same array.
    """
    copies = {id(x): x.copy() for x in sources}
    return [copies[id(x)] for x in sources]


def held_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an attention call, with copies of the arrays that callers passed."""
    held = dict(options)
    for name, value in options.items():
        if not OPTIONS[name].axes or value is None or isinstance(value, int | str):
            continue
        is_whole = OPTIONS[name].type == "integers"
        held[name] = np.array(integers(name, value) if is_whole else value)
    return held


def held_mask(mask: ArrayLike | None) -> Any:
    """Return a mask that a call has accepted, with copies of its arrays.

    Sparse masks do not change. Axes that were broadcast without memory get length 1.
    """

    def copied(mask: Any) -> Any:
        if is_sparse(mask):
            return mask
        return np.array(
            mask[tuple(slice(0, 1) if step == 0 else slice(None) for step in mask.strides)]
        )

    return Masks.of(mask).map(copied).argument


def recording_of(
    layer: Any, query: FloatArray, key: FloatArray, mask: Any, options: dict[str, Any]
) -> Recording:
    """Return the recording of one layer, with copies of the caller's and the layer's arrays."""
    name = type(layer).__name__
    RecordedLayer(name, query, key, mask, **options)  # copies are made of checked arguments
    arrays = np.ascontiguousarray(query), np.ascontiguousarray(key)
    return Recording([RecordedLayer(name, *arrays, held_mask(mask), **held_options(options))])
