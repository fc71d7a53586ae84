"""The weights of some queries, beside the output of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_masks, as_stored_arrays
from regard._arguments.device import is_on_cuda
from regard._arguments.numbers import offsets, slice_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

# Beyond this a position plus an index no longer fits in 64 bits.
_FAR = 2**63 - 2**32


def weights_of_rows(
    attention: Callable[..., Any],
    arrays: tuple[ArrayLike, ArrayLike, ArrayLike],
    mask: Any,
    rows: slice,
    options: Mapping[str, Any],
) -> Any:
    """Return what the call returns, with the weights of `rows` alone.

    These are the weights of a call with these queries and no values.
    """
    if not options.get("return_weights"):
        raise TypeError("rows need return_weights=True: they say whose weights are returned")
    if options.get("device") == "cuda" or any(map(is_on_cuda, arrays)):
        raise TypeError("rows are those of weights, which the kernels for GPUs do not keep")
    query, key, value = as_stored_arrays(query=arrays[0], key=arrays[1], value=arrays[2])
    first, end = slice_ends("rows", rows, query.shape[-2] if query.ndim > 1 else 0, "a slice")
    mask = as_masks(mask)
    results = attention(query, key, value, mask, **{**options, "return_weights": False})

    part = slice(first, end)
    words = {name: each for name, each in options.items() if name not in ("out", "return_lse")}
    words["query_offset"] = _offset_of(first, query.shape[-2], key.shape[-2], options)
    shown = tuple(_rows_of(each, part) for each in (mask if isinstance(mask, tuple) else (mask,)))
    _, weights = attention(
        query[..., part, :],
        key,
        value[..., :0],
        shown if isinstance(mask, tuple) else shown[0],
        **words,
    )
    output, *lse = results if isinstance(results, tuple) else (results,)
    return (output, weights, *lse)


def _offset_of(first: int, q_len: int, kv_len: int, options: Mapping[str, Any]) -> Array:
    lengths = options.get("key_lengths")
    keys = np.asarray(kv_len if lengths is None else lengths)
    numbers = offsets(options.get("query_offset", 0), keys.astype(np.int64) - q_len)
    return np.asarray(np.minimum(numbers, _FAR).astype(np.int64) + first)


def _rows_of(mask: Array | None, part: slice) -> Array | None:
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1:
        return mask
    shown: Array = mask[..., part, :]
    return shown
