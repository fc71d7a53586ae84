"""Build sparse masks of packed documents."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard.masks import _cells
from regard.masks._blocks import DEFAULT_BLOCK, Blocks
from regard.masks._combine import wrapped
from regard.masks._grid import evaluated
from regard.masks._intervals import Intervals, counted
from regard.masks._ranges import Ranges
from regard.masks._rows import Layout
from regard.masks._sequences import sequence_numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]

# A range takes 24 bytes, as many as the bits of this many query-key pairs.
_PAIRS_OF_RANGE = 24 * 8


@refuses_unknown
def documents(query_ids: ArrayLike, key_ids: ArrayLike | None = None) -> Ranges | Blocks:
    """Separate documents that are packed into one sequence, as a sparse mask.

    A query sees a key iff both have the same number. ``documents(ids) & sliding(n, window=(None,
    0))`` is causal within each document, if the documents follow one another.

    Parameters
    ----------
    query_ids : array_like of int, shape (q_len,) or (*batch, q_len)
        The document number of each query. The numbers are arbitrary. Give padding a separate
        number, and ignore its output rows.
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
    queries = sequence_numbers("query_ids", query_ids)
    keys = queries if key_ids is None else sequence_numbers("key_ids", key_ids)
    try:
        batch = np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        raise ValueError(
            "batch axes of query_ids and key_ids must broadcast, got shapes "
            f"{queries.shape} and {keys.shape}"
        ) from None
    layout = Layout((*batch, 1) if batch else (), queries.shape[-1], keys.shape[-1], None)
    layout.check()
    planes = math.prod(batch)
    queries = np.broadcast_to(queries, (*batch, layout.q_len)).reshape(planes, layout.q_len)
    keys = np.broadcast_to(keys, (*batch, layout.kv_len)).reshape(planes, layout.kv_len)
    asking, asked = _Parts(queries), _Parts(keys)
    low, found = _found(asking, asked)
    length = asking.end - asking.begin
    ranges = int((found * length).sum())
    if ranges > queries.size and ranges * _PAIRS_OF_RANGE > math.prod(layout.shape):
        return _in_blocks(queries, keys, layout._replace(block=DEFAULT_BLOCK))
    layout.check(ranges)
    of_query = np.repeat(found, length)
    which = asked.order[counted(np.repeat(low, length), of_query)]
    start = np.repeat(np.arange(queries.size), of_query) * layout.step
    start -= asked.plane[which] * layout.kv_len  # the parts count the keys of all planes
    whole = Intervals(start + asked.begin[which], start + asked.end[which])
    mask = wrapped(_cells.only_whole(whole, layout), layout)
    assert isinstance(mask, Ranges)
    return mask


class _Parts:
    """Consecutive tokens with one number, as intervals of the tokens of all planes."""

    __slots__ = ("begin", "end", "ids", "order", "plane")

    def __init__(self, ids: NDArray[Any]) -> None:
        is_first = np.ones(ids.shape, bool)
        np.not_equal(ids[:, 1:], ids[:, :-1], out=is_first[:, 1:])
        self.begin = np.nonzero(is_first.ravel())[0]
        self.end = np.append(self.begin[1:], ids.size) if len(self.begin) else self.begin
        self.plane = self.begin // max(ids.shape[1], 1)
        self.ids = ids.ravel()[self.begin]
        self.order = np.arange(len(self.begin))


def _found(asking: _Parts, asked: _Parts) -> tuple[Integers, Integers]:
    """Return, for each part of queries, the parts of keys with its number.

    They are ``asked.order[low : low + found]``, in the order of the keys.
    """
    if np.result_type(asking.ids, asked.ids).kind == "f":  # uint64 with a signed type
        ids = np.concatenate([asking.ids.astype(object), asked.ids.astype(object)])
    else:
        ids = np.concatenate([asking.ids, asked.ids])
    different, code = np.unique(ids, return_inverse=True)
    code += np.concatenate([asking.plane, asked.plane]) * len(different)
    wanted, given = code[: len(asking.ids)], code[len(asking.ids) :]
    asked.order = np.argsort(given, kind="stable")
    low = np.searchsorted(given[asked.order], wanted, "left")
    return low, np.searchsorted(given[asked.order], wanted, "right") - low


def _in_blocks(queries: NDArray[Any], keys: NDArray[Any], layout: Layout) -> Blocks:
    def same(plane: int, query: slice, key: slice) -> Bools:
        return np.asarray(queries[plane, query, None] == keys[plane, None, key])

    mask = wrapped(evaluated(layout, same), layout)
    assert isinstance(mask, Blocks)
    return mask
