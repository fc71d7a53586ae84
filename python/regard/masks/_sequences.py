"""Build masks from the sequences to which keys belong: padding and packed documents."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, integers, repeat
from regard.masks import _cells, _grid
from regard.masks._blocks import Blocks
from regard.masks._intervals import Intervals, counted
from regard.masks._positions import lengths
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout, check_axes
from regard.masks._sparse import DEFAULT_BLOCK, wrapped

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Bools, Integers


# A range takes 24 bytes, as many as the bits of this many query-key pairs.
_PAIRS_OF_RANGE = 24 * 8


@refuses_unknown
def padding(
    key_lengths: ArrayLike, kv_len: SupportsIndex, *, side: Literal["right", "left"] = "right"
) -> NDArray[np.bool_]:
    """Hide the padding of sequences that are shorter than their array.

    Parameters
    ----------
    key_lengths : int or integer array
        Number of keys that are not padding, scalar or one per batch entry, in ``0 .. kv_len``.
    kv_len : int
        Number of keys, including padding.
    side : {"right", "left"}, default "right"
        The side of the padding: after the sequence, or before it, where Hugging Face tokenizers
        put it for generation (``padding_side="left"``).

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(*batch, 1, 1, kv_len)`` for lengths of shape ``batch``, where the ones are the
        heads and queries axes; ``(1, kv_len)`` for one length.

    Raises
    ------
    TypeError
        If a length is not an integer.
    ValueError
        If a length is not in ``0 .. kv_len``, or `side` is neither "right" nor "left".

    See Also
    --------
    regard.scaled_dot_product_attention : ``key_lengths`` hides padding on the right, and
        ``left_padding`` on the left, without a mask.

    Notes
    -----
    A tokenizer's ``attention_mask`` ``(batch, kv_len)`` of ones and zeros gives the same mask:
    ``attention_mask.astype(bool)[:, None, None, :]``. Padding on the left does not change positions
    within the array, so ``padding(...) & causal(...)`` is correct without an offset. Positional
    encodings, however, must count from the first token of each sequence.

    Examples
    --------
    >>> import regard
    >>> regard.masks.padding([3, 1], 4).astype(int)[:, 0, 0]
    array([[1, 1, 1, 0],
           [1, 0, 0, 0]])
    >>> regard.masks.padding([3, 1], 4, side="left").astype(int)[:, 0, 0]
    array([[0, 1, 1, 1],
           [0, 0, 0, 1]])
    """
    kv_len = count("kv_len", kv_len)
    if side not in ("right", "left"):
        raise ValueError(f'side must be "right" or "left", got {side!r}')
    real = lengths("key_lengths", key_lengths, kv_len)
    keys = np.arange(kv_len)
    visible: NDArray[np.bool_] = keys < real if side == "right" else keys >= kv_len - real
    return visible if visible.ndim > 1 else visible[None]


@refuses_unknown
def segments(query_segments: ArrayLike, key_segments: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Separate documents that are packed into one sequence.

    A query may attend to a key iff both have the same number. ``segments(ids) & causal(length)``
    is causal within each document, because the documents follow one another.

    Parameters
    ----------
    query_segments : array_like of int, shape (q_len,) or (*batch, q_len)
        The document number of each query. The numbers are arbitrary. Give padding a separate
        number, and ignore its output rows.
    key_segments : array_like of int, shape (kv_len,) or (*batch, kv_len), optional
        The document number of each key; `query_segments` when not given. Batch axes broadcast.

    Returns
    -------
    numpy.ndarray of bool
        Shape ``(q_len, kv_len)``, or ``(*batch, 1, q_len, kv_len)`` if either has batch axes.

    Raises
    ------
    TypeError
        If the numbers are not integers.
    ValueError
        If an array has no axis, or batch axes do not broadcast.

    See Also
    --------
    regard.scaled_dot_product_attention_ragged : accepts packed sequences without a mask, and
        computes no score between two documents.

    Examples
    --------
    >>> import regard
    >>> ids = [0, 0, 1, 1, 1]
    >>> regard.masks.segments(ids).astype(int)
    array([[1, 1, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    >>> (regard.masks.segments(ids) & regard.masks.causal(5)).astype(int)
    array([[1, 0, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 0, 0],
           [0, 0, 1, 1, 0],
           [0, 0, 1, 1, 1]])
    """
    queries, keys, batch = _numbers(
        ("query_segments", query_segments), ("key_segments", key_segments)
    )
    queries, keys = queries[..., :, None], keys[..., None, :]
    if batch:
        queries, keys = queries[..., None, :, :], keys[..., None, :, :]
    same: Bools = queries == keys
    return same


@refuses_unknown
def documents(query_ids: ArrayLike, key_ids: ArrayLike | None = None) -> Ranges | Blocks:
    """Separate documents that are packed into one sequence, as a sparse mask.

    A query sees a key iff both have the same number. ``documents(ids) & sliding(n, window=(None,
    0))`` is causal within each document, if the documents follow one another.

    Parameters
    ----------
    query_ids : array_like of int, shape (q_len,) or (*batch, q_len)
        The document number of each query, as in `segments`.
    key_ids : array_like of int, shape (kv_len,) or (*batch, kv_len), optional
        The document number of each key; `query_ids` when not given. Batch axes broadcast.

    Returns
    -------
    Ranges or Blocks
        Ranges if the documents follow one another, or are in few parts. Otherwise the smaller of
        the two. The shape is ``(q_len, kv_len)``, or ``(*batch, 1, q_len, kv_len)`` if either has
        batch axes.

    Raises
    ------
    TypeError
        If the numbers are not integers.
    ValueError
        If an array has no axis, or batch axes do not broadcast.

    See Also
    --------
    regard.masks.segments : The same as a dense mask.
    regard.scaled_dot_product_attention_ragged : accepts packed sequences without a mask.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> regard.masks.documents([0, 0, 1, 1, 1]).to_dense().astype(int)
    array([[1, 1, 0, 0, 0],
           [1, 1, 0, 0, 0],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1],
           [0, 0, 1, 1, 1]])
    >>> regard.masks.documents(np.arange(1_000_000) // 2000)
    Ranges(shape=(1000000, 1000000), 0.200% visible, 1000000 ranges, 32 MB)
    """
    queries, keys, batch = _numbers(("query_ids", query_ids), ("key_ids", key_ids))
    layout = Layout((*batch, 1) if batch else (), queries.shape[-1], keys.shape[-1], None)
    layout.check()
    planes = math.prod(batch)
    queries = np.broadcast_to(queries, (*batch, layout.q_len)).reshape(planes, layout.q_len)
    keys = np.broadcast_to(keys, (*batch, layout.kv_len)).reshape(planes, layout.kv_len)

    def same(plane: int, query: slice, key: slice) -> Bools:
        return np.asarray(queries[plane, query, None] == keys[plane, None, key])

    (query_begin, query_end), (key_begin, key_end) = _parts(queries), _parts(keys)
    plane = np.concatenate(
        [query_begin // max(layout.q_len, 1), key_begin // max(layout.kv_len, 1)]
    )
    ids = queries.ravel()[query_begin], keys.ravel()[key_begin]
    if np.result_type(*ids).kind == "f":  # uint64 with a signed type
        ids = ids[0].astype(object), ids[1].astype(object)
    different, code = np.unique(np.concatenate(ids), return_inverse=True)
    wanted, given = np.split(code + plane * len(different), [len(query_begin)])
    # A part of queries sees the parts of keys with its number, found[i] from low[i] on.
    order = np.argsort(given, kind="stable")
    low = np.searchsorted(given[order], wanted, "left")
    found = np.searchsorted(given[order], wanted, "right") - low
    length = query_end - query_begin
    ranges = int((found * length).sum())
    if ranges > queries.size and ranges * _PAIRS_OF_RANGE > math.prod(layout.shape):
        layout = layout._replace(block=DEFAULT_BLOCK)
        return wrapped(_grid.evaluated(layout, same), layout)  # type: ignore[return-value]
    layout.check(ranges)
    of_query = repeat(found, length)
    which = order[counted(repeat(low, length), of_query)]
    start = repeat(np.arange(queries.size), of_query) * layout.step
    start -= plane[len(query_begin) :][which] * layout.kv_len
    whole = Intervals(start + key_begin[which], start + key_end[which])
    return wrapped(_cells.only_whole(whole, layout), layout)  # type: ignore[return-value]


def _parts(ids: NDArray[Any]) -> tuple[Integers, Integers]:
    """Return consecutive tokens with one number as intervals of the tokens of all planes."""
    is_first = np.ones(ids.shape, bool)
    np.not_equal(ids[:, 1:], ids[:, :-1], out=is_first[:, 1:])
    begin = np.flatnonzero(is_first)
    return begin, np.append(begin, ids.size)[1:]


def _numbers(
    query: tuple[str, Any], key: tuple[str, Any]
) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...]]:
    """Return the numbers of two named arguments, and their common batch axes.

    The number of each key is by default the number of the query. Raises TypeError or ValueError.
    """
    queries = _sequence_numbers(*query)
    keys = queries if key[1] is None else _sequence_numbers(*key)
    try:
        return queries, keys, np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        raise ValueError(
            f"batch axes of {query[0]} and {key[0]} must broadcast, got shapes "
            f"{queries.shape} and {keys.shape}"
        ) from None


def _sequence_numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    ids = integers(name, value, "an integer array", any_size=True)
    check_axes(name, ids.shape)
    if ids.ndim == 0:
        raise ValueError(f"{name} must have one number for each row, got a single number")
    return ids
