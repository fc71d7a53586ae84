"""Sparse masks in compiled programs: three arrays of integers, and some numbers.

JAX has 64-bit integers only if configured to, so they are passed as pairs of 32-bit integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.masks._rows import SparseRows
from regard.masks._sparse import of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

NAMES = ("mask_starts", "mask_spans", "mask_bits")


def arrays_of(mask: Any) -> tuple[dict[str, Array], tuple[Any, ...]]:
    """Return the arrays of a sparse mask by name, and the numbers that `sparse_of` needs."""
    rows = mask._rows.distinct()
    starts, spans = (
        np.ascontiguousarray(array).view(np.int32) for array in (rows.starts, rows.spans)
    )
    arrays = dict(zip(NAMES, (starts, spans, rows.bits), strict=True))
    layout = rows.row_queries, rows.first_query, rows.first_key
    return arrays, (*rows.shape[-2:], *layout, mask._block)


def sparse_of(arrays: Sequence[Array], numbers: Sequence[Any]) -> Any:
    """Return the mask of these arrays, which may have additional axes before their own.

    The additional axes of `starts` belong to the mask. The other arrays repeat along these axes.
    """
    starts, spans, bits = arrays
    q_len, kv_len, row_queries, first_query, first_key, block = numbers
    starts = starts.view(np.int64)
    spans = spans[(0,) * (spans.ndim - 2)].view(np.int64)
    bits = bits[(0,) * (bits.ndim - 3)]
    shape = (*starts.shape[:-1], q_len, kv_len)
    rows = SparseRows(starts, spans, bits, row_queries, first_query, first_key, shape)
    return of_rows(rows, block and tuple(block))
