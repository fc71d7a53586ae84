"""Explanations of attention to a cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import Masks
from regard._attention.explanation import FLOAT_MASK, Explanation, distinct_bytes
from regard._cache import attend

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from regard._cache.layer import Layer


def explain(
    layer: Layer,
    query: ArrayLike,
    starts: ArrayLike | None,
    mask: ArrayLike | None,
    options: dict[str, Any],
) -> Explanation:
    """Report what `attend` would compute with these arguments, and how."""
    geometry, notes = layer.geometry, []
    call, plan = attend.plan(layer, query, starts, mask, options)
    stored = geometry.dtype
    if stored.is_quantized:
        notes.append(f"keys and values are {stored.note}")
    elif stored.dtype != call.query.dtype:
        notes.append(f"keys and values are stored as {geometry.dtype.name}")
    notes.append(f"keys and values are in pages of {geometry.page_size} tokens")
    masks = Masks.of(mask)
    if masks.bias is not None:
        notes.append(FLOAT_MASK)
    bytes_read = distinct_bytes(call.query) + sum(map(distinct_bytes, masks.arrays))
    bytes_read += _bytes_of_tokens(layer)
    key, value = call.rows.arrays[:2]
    precision = options.get("precision")
    packed = None
    if starts is not None:
        assert layer.state is not None
        packed = np.asarray(starts), np.concatenate([[0], layer.state.all_lengths().cumsum()])
    arguments = plan, key, value, precision, bytes_read, notes, masks, packed
    quantized = stored.name if stored.is_quantized else None
    return Explanation.of_plan(*arguments, quantized=quantized)


def _bytes_of_tokens(layer: Layer) -> int:
    """Return the number of bytes of the stored tokens, without unused room."""
    state, geometry = layer.state, layer.geometry
    assert state is not None
    tokens = int((state.all_lengths() - state.all_evicted() * geometry.page_size).sum())
    forms = (
        form
        for dim in (geometry.head_dim, geometry.value_dim)
        for form in geometry.dtype.forms(geometry.kv_heads, 1, dim)
    )
    return tokens * sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms)
