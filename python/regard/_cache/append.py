"""Store the keys and values of new tokens, padded or packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import token_counts
from regard._cache import arguments
from regard._cache.storage.quantize import quantized
from regard._cache.storage.state import per_entry

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.layer import Layer
    from regard._cache.storage.state import PerEntry

    Array = NDArray[Any]


def append(layer: Layer, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None) -> None:
    """Append tokens (batch, kv_heads, new, dim), of which the first `lengths` are real."""
    if lengths is None and layer.append_plain(key, value):
        return
    geometry, state = layer.geometry, layer.state
    assert state is not None
    keys, values = arguments.new_tokens(geometry, state.batch, key, value)
    counts = arguments.new_lengths(state.batch, lengths, keys.shape[2])
    alike = counts if isinstance(counts, int) else per_entry(counts)
    _store(layer, keys, values, alike, counts, is_packed=False)


def append_ragged(layer: Layer, key: ArrayLike, value: ArrayLike, starts: ArrayLike) -> None:
    """Append packed tokens (tokens, kv_heads, dim)."""
    if starts is not None and layer.append_plain(key, value, starts):
        return
    geometry, state = layer.geometry, layer.state
    assert state is not None
    keys, values = arguments.packed_tokens(geometry, key, value)
    tokens = keys.shape[2]
    counts = token_counts(starts, "key", tokens, state.batch)
    _store(layer, keys, values, per_entry(counts), tokens, is_packed=True)


def _store(
    layer: Layer,
    keys: Array,
    values: Array,
    counts: PerEntry,
    real: PerEntry,
    *,
    is_packed: bool,
) -> None:
    """Append `counts` tokens to each entry. The first `real` rows of the arrays are tokens."""
    geometry, state = layer.geometry, layer.state
    assert state is not None
    layer.check_step(counts)
    if state.batch == 0 or not (counts if isinstance(counts, int) else counts.any()):
        return
    if geometry.capacity is not None:
        each = np.broadcast_to(counts, state.batch)
        geometry.check_append(each, state.lengths + each)
    if geometry.is_quantized:
        rows = quantized(geometry, layer.number, keys, values, real)
    else:
        rows = [
            arguments.as_stored(name, array, geometry.dtype.numbers, real)
            for name, array in (("key", keys), ("value", values))
        ]
    if not layer.append(rows, counts, is_packed=is_packed):
        rows = [
            arguments.converted(name, array, geometry.dtype.numbers, real)
            for name, array in zip(("key", "value"), rows, strict=True)
        ]
        layer.append(rows, counts, is_packed=is_packed)
