"""Take parts of sparse masks as views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import shown

if TYPE_CHECKING:
    from regard.masks._rows import SparseRows

_POSSIBLE = (
    "a sparse mask accepts integers, None and an ellipsis on the batch and heads axes, and slices "
    "without steps on all axes"
)


def view_of(rows: SparseRows, index: Any) -> SparseRows:
    """Return the part of a mask that an index selects, or raise IndexError."""
    *planes, queries, keys = _by_axis(index, len(rows.shape))
    q_len, kv_len = rows.shape[-2:]
    first_query, end_query = _ends(queries, q_len)
    first_key, end_key = _ends(keys, kv_len)
    starts = rows.starts[(*planes, slice(None))]
    return rows._replace(
        starts=starts,
        first_query=rows.first_query + first_query,
        first_key=rows.first_key + first_key,
        shape=(*starts.shape[:-1], end_query - first_query, end_key - first_key),
    )


def _by_axis(index: Any, ndim: int) -> list[Any]:
    """Return an index or a slice for each axis, and None for each new axis."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        is_int = isinstance(part, int | np.integer) and not isinstance(part, bool)
        if not (is_int or part is None or part is Ellipsis or isinstance(part, slice)):
            raise IndexError(f"{_POSSIBLE}, got {shown(part)}")
    if parts.count(Ellipsis) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    if missing < 0:
        raise IndexError(f"too many indices: the mask has {ndim} axes, got {ndim - missing}")
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts[at : at + 1] = [slice(None)] * missing
    if not all(isinstance(part, slice) for part in parts[-2:]):
        raise IndexError(f"{_POSSIBLE}, got {shown(index)}: write i:i + 1 for one query or one key")
    for part in parts:
        if isinstance(part, slice) and part.step not in (None, 1):
            raise IndexError(f"{_POSSIBLE}, got {part}")
    return parts


def _ends(part: slice, length: int) -> tuple[int, int]:
    start, stop, _ = part.indices(length)
    return start, max(start, stop)
