"""What attending to a cache would compute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache import attend
from regard._explanation import FLOAT_MASK, Explanation, distinct_bytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.call import Part
    from regard._cache.content import Content
    from regard._cache.geometry import Geometry
    from regard._cache.paged import PagedContent

    Array = NDArray[Any]


def explain(
    content: Content | PagedContent, query: Array, mask: ArrayLike | None, **options: Any
) -> Explanation:
    """Return an explanation, of all parts together where several are joined."""
    geometry, notes = content.geometry, []
    if geometry.is_quantised:
        notes.append("keys and values are 8-bit integers, and a scale for each row of them")
    elif geometry.dtype != query.dtype:
        notes.append(f"keys and values are stored as {geometry.dtype.name}")
    if geometry.page_size is not None:
        notes.append(f"keys and values lie in pages of {geometry.page_size} tokens")
    if mask is not None and np.asarray(mask).dtype.kind == "f":
        notes.append(FLOAT_MASK)
    query_bytes = distinct_bytes(query)
    found = [
        Explanation.of_plan(
            plan,
            part.rows.key,
            part.rows.value,
            query_bytes + _bytes_of_tokens(geometry, part) + _bytes_of_mask(part),
            notes,
        )
        for part, plan in attend.plans(content, query, mask, **options)
    ]
    return found[0] if len(found) == 1 else _joined(found)


def _joined(parts: list[Explanation]) -> Explanation:
    """Return the longest part with what all of them take."""
    longest = max(parts, key=lambda part: part.kv_len)
    sizes = " + ".join(str(part.kv_len) for part in parts)
    total = {
        name: sum(getattr(part, name) for part in parts)
        for name in (
            "kv_len",
            "tasks",
            "tiles",
            "tiles_computed",
            "tiles_biased",
            "scores_computed",
            "flops",
            "bytes",
        )
    }
    note = f"{sizes} slots of the ring are attended to one after another, and joined"
    return replace(longest, **total, notes=(*longest.notes, note))


def _bytes_of_tokens(geometry: Geometry, part: Part) -> int:
    """Return the bytes of what the entries hold, not of the room that they have."""
    lengths = part.kv_len if part.key_lengths is None else part.key_lengths
    tokens = int(np.broadcast_to(lengths, geometry.batch).sum())
    scales = 2 * 4 if geometry.is_quantised else 0
    numbers = (geometry.head_dim + geometry.value_dim) * geometry.dtype.itemsize
    return tokens * geometry.kv_heads * (numbers + scales)


def _bytes_of_mask(part: Part) -> int:
    return 0 if part.mask is None else distinct_bytes(np.asarray(part.mask))
