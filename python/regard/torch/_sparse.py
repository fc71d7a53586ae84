"""Sparse masks as arguments of the operators: three tensors and some integers.

The tensors share the memory of the mask's arrays, so that a graph may contain them, and the kernels
rebuild the mask from them without copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

import regard
from regard._arguments.masks import is_sparse
from regard.torch._memory import as_array
from regard.torch._operators import SPARSE_NUMBERS, SPARSE_TENSORS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[Any]


def shown_fields(shown: Any) -> dict[str, Any]:
    """Return the arguments of the operators for a bool mask, a sparse mask or None."""
    if not is_sparse(shown):
        return {"bool_mask": shown}
    rows, (block_queries, block_keys) = shown._rows, shown._block or (0, 0)
    arrays = rows.starts, rows.spans, rows.bits
    fields: dict[str, Any] = dict(zip(SPARSE_TENSORS, map(_shared, arrays), strict=True))
    # The other axes of the mask are the axes of `starts`, which vmap may extend.
    numbers = rows.row_queries, rows.first_query, rows.first_key, block_queries, block_keys
    return fields | {SPARSE_NUMBERS: [*rows.shape[-2:], *numbers]}


def shown_of(call: Any) -> Any:
    """Return the bool mask of a call as an array, the sparse mask, or None."""
    if call.mask_starts is None:
        return None if call.bool_mask is None else as_array(call.bool_mask)
    starts, spans, bits = (as_array(getattr(call, name)) for name in SPARSE_TENSORS)
    q_len, kv_len, row_queries, first_query, first_key, *block = call.mask_numbers
    shape = (*starts.shape[:-1], q_len, kv_len)
    rows = starts, spans, bits, row_queries, first_query, first_key, shape
    mask: Any = object.__new__(regard.masks.Blocks if any(block) else regard.masks.Ranges)
    mask.__setstate__((rows, shape[:-2], tuple(block) if any(block) else None))
    return mask


class _Writable:
    """An array as PyTorch reads it without a warning that it must not be written to."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _shared(array: Array) -> Tensor:
    """Return a tensor that shares the memory of an array, which nothing writes to."""
    if is_dynamo_compiling():
        return torch.as_tensor(array)
    return torch.from_numpy(np.asarray(_Writable(array)))
