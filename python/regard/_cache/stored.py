"""The keys and values of a cache as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard._cache.storage.quantize import restored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.layer import Layer

    Array = NDArray[Any]


def stored_tokens(layer: Layer, which: Literal["key", "value"]) -> Array:
    """Return keys or values, (batch, kv_heads, longest, dim), with 0 for missing tokens."""
    state, geometry = layer.state, layer.geometry
    assert state is not None
    number = 0 if which == "key" else 1
    arrays = layer.rows.arrays
    dtype = np.dtype(np.float32) if geometry.is_quantized else geometry.dtype.numbers
    dim = geometry.head_dim if which == "key" else geometry.value_dim
    found = np.zeros((state.batch, geometry.kv_heads, state.longest, dim), dtype)
    size, first_pages = geometry.page_size, geometry.first_pages
    entries = zip(state.all_lengths().tolist(), state.all_evicted().tolist(), strict=True)
    for entry, (length, evicted) in enumerate(entries):
        for page in range(-(-length // size)):
            if first_pages <= page < first_pages + evicted:
                continue
            at = state.pages[entry, page - evicted if page >= first_pages else page]
            tokens = min(size, length - page * size)
            rows = arrays[number][at, :, :tokens]
            if geometry.is_quantized:
                scales = arrays[2 + number][at, :, :tokens]
                rows = restored(geometry.dtype, rows, scales, is_rotated=which == "key")
            found[entry, :, page * size : page * size + tokens] = rows
    return found
