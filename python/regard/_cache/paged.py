"""Attention to the pages of other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from regard import _core
from regard._arguments.arrays import as_array, as_native
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import column_hint
from regard._arguments.keywords import check_options, refuses_unknown
from regard._arguments.numbers import choice, integers
from regard._arguments.options import CacheOptions, ResultOptions, names_of, takes_options
from regard._cache import attend
from regard._cache.types import SCALE_TYPE
from regard._runtime.public import public

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_OPTIONS = frozenset(names_of(CacheOptions, ResultOptions))


_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_VIEW_BYTES = "; pass the bytes of float8 numbers as a view, .view(ml_dtypes.float8_e4m3fn)"
_POOL_TYPES = ("float16", "bfloat16", "float32", "float64", "int8", *_FLOAT8)


@overload
def paged_attention(
    query: ArrayLike,
    key_pages: ArrayLike,
    value_pages: ArrayLike,
    block_table: ArrayLike,
    lengths: ArrayLike,
    starts: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    key_scales: ArrayLike | None = None,
    value_scales: ArrayLike | None = None,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[CacheOptions],
) -> Array: ...
@overload
def paged_attention(
    query: ArrayLike,
    key_pages: ArrayLike,
    value_pages: ArrayLike,
    block_table: ArrayLike,
    lengths: ArrayLike,
    starts: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    key_scales: ArrayLike | None = None,
    value_scales: ArrayLike | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[CacheOptions],
) -> Any: ...
@public
@refuses_unknown
@takes_options(
    CacheOptions,
    ResultOptions,
    is_causal=True,
    query_offset=None,
    reference="as for `KVCache.attend`",
)
def paged_attention(
    query: ArrayLike,
    key_pages: ArrayLike,
    value_pages: ArrayLike,
    block_table: ArrayLike,
    lengths: ArrayLike,
    starts: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    key_scales: ArrayLike | None = None,
    value_scales: ArrayLike | None = None,
    **options: Any,
) -> Any:
    """Attend to keys and values in the pages of another engine, without copying the pages.

    Engines such as vLLM and FlashInfer keep the keys and values of all texts in pools of pages, and
    a table of the pages of each text. Prefill, decode and mixtures of both are the same call.

    Parameters
    ----------
    query : array_like, shape (batch, heads, q_len, head_dim)
        Or packed, of shape ``(tokens, heads, head_dim)``, with `starts`. ``heads`` is a multiple of
        ``kv_heads``. Queries of one token each, ``(batch, heads, head_dim)``, are packed with
        ``starts=np.arange(batch + 1)``.
    key_pages : ndarray, shape (pages, page_size, kv_heads, head_dim)
        The pool, of float16, bfloat16, float32, float64, int8, or ml_dtypes' float8_e4m3fn or
        float8_e5m2. Pages may have any size and strides, if the last axis is contiguous.
    value_pages : ndarray, shape (pages, page_size, kv_heads, value_dim)
        As for `key_pages`.
    block_table : array_like of int, shape (batch, columns)
        The page of each ``page_size`` tokens of a text. Columns after its last token are not read.
    lengths : array_like of int, shape (batch,)
        Number of tokens of each text in the pool, including the tokens of the queries. The queries
        of a text without tokens are fully masked: their output is 0.
    starts : array_like of int, shape (batch + 1,), optional
        Where each text's queries start, followed by the total number of queries, as for
        `KVCache.attend_ragged`. A text may have no queries.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float), optional
        As for `KVCache.attend`, or with `starts` as for `KVCache.attend_ragged`, with a column for
        each of ``max(lengths)`` positions.
    layout : {"NHD", "HND"}
        The order of the axes of a page: ``(page_size, kv_heads, dim)``, or
        ``(kv_heads, page_size, dim)`` with ``"HND"``.
    key_scales, value_scales : array_like of float, optional
        Factors of int8 and float8 numbers, at least 0: a scalar, one per key head, or one per row,
        with the shape of the pages without the last axis. Required with int8, 1 by default with
        float8, and accepted only with these types. The scales of rows are not checked; NaN makes
        the output of queries that see the row NaN.
    is_causal : bool, default True
        Whether a query sees only keys up to its own position.
    query_offset : int or array_like of int, optional
        Position of the first query of each text. By default, the queries belong to the last tokens.
    {options}

    Returns
    -------
    output : ndarray, shape (batch, heads, q_len, value_dim) or (tokens, heads, value_dim)
        Has the result type of `query` and the pages, or the type of `query` with int8 or float8.
    weights : ndarray, shape (batch, heads, q_len, max(lengths)) or (tokens, heads, max(lengths))
        Returned if `return_weights`.
    lse : ndarray, shape (batch, heads, q_len) or (tokens, heads)
        Returned if `return_lse`.

    Raises
    ------
    TypeError
        If an argument has the wrong type or is unknown.
    ValueError
        If shapes disagree or a number is out of range; if a text has more queries than tokens, and
        `query_offset` is not given.
    IndexError
        If `block_table` names a page that is not in the pool. Nothing has been read then.

    See Also
    --------
    KVCache : keeps its own pages and tables.

    Notes
    -----
    Results are bitwise identical to the results of `scaled_dot_product_attention` with the keys of
    each text. Pages whose size is a multiple of 16 are read in place. The rows of other pages are
    gathered block by block, in memory that stays in the processor's cache.

    Int8 and float8 keys are multiplied as stored. `KVCache` rotates its keys first, which loses
    less accuracy. A NaN in a float8_e4m3fn row makes the output of queries that see the row NaN.

    Examples
    --------
    Two texts of 5 and 2 tokens in pages of 4:

    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> key_pages, value_pages = rng.standard_normal((2, 10, 4, 2, 64), dtype=np.float32)
    >>> table, lengths = [[7, 3], [5, 0]], [5, 2]
    >>> query = rng.standard_normal((2, 8, 1, 64), dtype=np.float32)
    >>> output = regard.paged_attention(query, key_pages, value_pages, table, lengths)
    >>> key, value = (
    ...     pages[[7, 3]].reshape(8, 2, 64)[:5].swapaxes(0, 1) for pages in (key_pages, value_pages)
    ... )
    >>> single = regard.scaled_dot_product_attention(query[0], key, value)
    >>> np.array_equal(output[0], single)
    True
    """
    if not _OPTIONS.issuperset(options):
        check_options("paged_attention", options, _OPTIONS)
    query = as_array("query", query)
    if starts is None and query.ndim == 3:
        raise ValueError(
            f"query must be (batch, heads, q_len, head_dim) without starts, got shape "
            f"{query.shape}; pass starts=np.arange(batch + 1) for one query of each text"
        )
    scales = key_scales, value_scales
    pages = _pages(key_pages, value_pages, scales, block_table, lengths, layout)
    options = {
        name: option
        for name, option in with_arrays(options).items()
        if name != "query_offset" or option is not None
    }
    return attend.call(_core.attention_cached, pages, query, starts, mask, options)


def _pages(
    key_pages: ArrayLike,
    value_pages: ArrayLike,
    scales: tuple[ArrayLike | None, ArrayLike | None],
    block_table: ArrayLike,
    lengths: ArrayLike,
    layout: str,
) -> _core.LayerPages:
    """Return the pages in the order of `KVCache`, (pages, kv_heads, page_size, dim)."""
    choice("layout", layout, ("NHD", "HND"))
    key, value = _pool("key_pages", key_pages), _pool("value_pages", value_pages)
    if value.dtype != key.dtype:
        raise TypeError(
            f"value_pages must have the type of key_pages, {key.dtype}, got {value.dtype}"
        )
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value_pages must have the first axes of key_pages, {key.shape[:3]}, got shape "
            f"{value.shape}"
        )
    arrays = [key, value]
    names = "key_scales", "value_scales"
    heads_at = 2 if layout == "NHD" else 1
    is_float8 = key.dtype.name in _FLOAT8
    for name, given in zip(names, scales, strict=True):
        if given is None and is_float8:
            given = 1.0
        if (given is not None) != (is_float8 or key.dtype == np.int8):
            needed = "given with pages of int8" if given is None else "left out with pages of"
            raise TypeError(f"{name} must be {needed}{f' {key.dtype}' * (given is not None)}")
        if given is not None:
            arrays.append(_scales(name, given, key.shape[:3], heads_at))
    if is_float8:
        arrays[:2] = (array.view(np.uint8) for array in arrays[:2])
    if layout == "NHD":
        arrays = [array.swapaxes(1, 2) for array in arrays]
    table, numbers = _table(block_table, lengths, arrays[0].shape[0], arrays[0].shape[2])
    key_rows, value_rows, *of_both = arrays
    of_key, of_value = of_both or (None, None)
    is_e5m2 = key.dtype.name == "float8_e5m2"
    return _core.LayerPages(key_rows, value_rows, of_key, of_value, table, numbers, is_e5m2)


def _pool(name: str, pages: ArrayLike) -> Array:
    array = as_array(name, pages)
    if array.dtype.name not in _POOL_TYPES or not array.dtype.isnative:
        raise TypeError(
            f"{name} must be an array of {', '.join(_POOL_TYPES[:-1])} or {_POOL_TYPES[-1]}, got "
            f"{array.dtype}{_VIEW_BYTES * (array.dtype == np.uint8)}"
        )
    if array.ndim != 4 or 0 in array.shape[1:]:
        raise ValueError(
            f"{name} must have 4 axes, the last 3 of length 1 or more, got shape {array.shape}"
        )
    if not array.size:  # whose strides NumPy may set to 0
        return np.empty(array.shape, array.dtype)
    is_contiguous = array.strides[3] == array.itemsize or array.shape[3] == 1
    is_even = array.flags.aligned and all(step % array.itemsize == 0 for step in array.strides)
    if not (is_contiguous and is_even):
        raise ValueError(
            f"{name} must be aligned, with a contiguous last axis, to be read without a copy, "
            f"got strides {array.strides}"
        )
    return array


def _scales(name: str, given: ArrayLike, rows: tuple[int, ...], heads_at: int) -> Array:
    """Return one scale for each row; many rows may share one number in memory."""
    scales = as_array(name, given)
    if scales.dtype.kind not in "fiu" and scales.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of floats, got {scales.dtype}")
    with np.errstate(over="ignore"):
        scales = as_native(scales, SCALE_TYPE)
    per_head = (rows[heads_at],)
    if scales.shape not in ((), per_head, rows):
        raise ValueError(
            f"{name} must be a number, or have shape {per_head} or {rows}, got {scales.shape}"
        )
    if scales.shape != rows:  # the scales of rows are data, most of which this call does not read
        wrong = scales[~((scales >= 0) & np.isfinite(scales))]
        if wrong.size:
            raise ValueError(f"{name} must be at least 0 and finite, got {wrong[0]}")
    if scales.shape == per_head:
        scales = scales[:, None] if heads_at == 1 else scales
    return np.broadcast_to(scales, rows)


def _table(
    block_table: ArrayLike, lengths: ArrayLike, count: int, page_size: int
) -> tuple[Array, Array]:
    """Return the table of pages as int32, with 0 where nothing is read, and the lengths."""
    table = integers("block_table", block_table, "an integer array of shape (batch, columns)")
    if table.ndim != 2:
        raise ValueError(f"block_table must be (batch, columns), got shape {table.shape}")
    numbers = integers("lengths", lengths, "an integer array of shape (batch,)")
    if numbers.shape != table.shape[:1]:
        hint = column_hint("lengths", numbers.shape, table.shape[:1])
        raise ValueError(f"lengths must be {table.shape[:1]}, got shape {numbers.shape}{hint}")
    most = table.shape[1] * page_size
    wrong = (numbers < 0) | (numbers > most)
    if wrong.any():
        entry = int(np.argmax(wrong))
        raise ValueError(
            f"lengths must be from 0 to {most}, which block_table has columns for, got "
            f"{numbers[entry]} for entry {entry}"
        )
    numbers = numbers.astype(np.int64)
    is_read = np.arange(table.shape[1]) < -(-numbers // page_size)[:, None]
    is_absent = is_read & ((table < 0) | (table >= count))
    if is_absent.any():
        entry, column = np.argwhere(is_absent)[0].tolist()
        pages = f"pages from 0 to {count - 1}" if count else "no page of a pool without pages"
        raise IndexError(
            f"block_table must name {pages}, got {table[entry, column]} in entry {entry}, column "
            f"{column}"
        )
    return np.where(is_read, table, 0).astype(np.int32), numbers
