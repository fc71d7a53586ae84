"""Assign distances to the buckets for which T5 learns biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, flag, offsets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@refuses_unknown
def t5_buckets(
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    query_offset: ArrayLike = 0,
    bidirectional: bool = True,
    num_buckets: SupportsIndex = 32,
    max_distance: SupportsIndex = 128,
) -> NDArray[np.int64]:
    """Assign the distances between queries and keys to T5 buckets.

    T5 adds a learned number to the score of a query at position ``p`` and key ``j``: one number for
    each head and each bucket of ``j - p`` [1]_. With ``n`` buckets for a direction, each distance
    below ``n // 2`` has a separate bucket. Greater distances share the other buckets: bucket ``b``
    begins at distance ``n // 2 * (max_distance / (n // 2)) ** ((b - n // 2) / (n - n // 2))``, and
    the last bucket has no end [2]_.

    Parameters
    ----------
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys; `q_len` when not given.
    query_offset : int, integer array or "end", optional
        Number of keys that precede the first query: one number, or one per batch entry. ``"end"``
        is ``kv_len - q_len``.
    bidirectional : bool, default True
        True, as in the T5 encoder: half of the buckets are for keys at or before the query, and the
        other half, from ``num_buckets // 2`` on, for keys after it. False, as in the T5 decoder:
        all buckets are for keys at or before the query, and keys after it are in bucket 0.
    num_buckets : int, optional
        Number of buckets: at least 2; if `bidirectional`, even and at least 4.
    max_distance : int, optional
        The distance at which the last bucket would end if it had an end. It must exceed half the
        number of buckets of a direction.

    Returns
    -------
    numpy.ndarray of int64
        Bucket numbers in ``0 .. num_buckets - 1``, of shape ``(q_len, kv_len)`` for one offset or
        ``(*batch, q_len, kv_len)`` for offsets of shape ``batch``.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a number is out of range.

    Notes
    -----
    ``np.moveaxis(table[buckets], -1, -3)`` is an attention mask, where `table` has the shape
    ``(num_buckets, heads)``, like T5's ``relative_attention_bias.weight``. T5 does not scale its
    scores: pass ``scale=1.0``.

    The bucket bounds are computed with exact integers. Implementations with float32 logarithms may
    be off by one bucket at a bound.

    References
    ----------
    .. [1] Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
       Transformer", JMLR 2020, section 2.1. https://arxiv.org/abs/1910.10683
    .. [2] https://github.com/tensorflow/mesh, ``_relative_position_bucket`` in
       ``mesh_tensorflow/transformer/transformer_layers.py``

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> buckets = regard.positional.t5_buckets(3, 5, num_buckets=8, max_distance=16)
    >>> buckets
    array([[0, 5, 6, 6, 6],
           [1, 0, 5, 6, 6],
           [2, 1, 0, 5, 6]])
    >>> table = np.linspace(-1, 1, 8 * 12).reshape(8, 12)
    >>> mask = np.moveaxis(table[buckets], -1, -3)
    >>> query, key = np.ones((12, 3, 64)), np.ones((12, 5, 64))
    >>> regard.scaled_dot_product_attention(query, key, key, mask, scale=1.0).shape
    (12, 3, 64)
    """
    q_len = count("q_len", q_len)
    kv_len = q_len if kv_len is None else count("kv_len", kv_len)
    bidirectional = flag("bidirectional", bidirectional)
    buckets = count("num_buckets", num_buckets, minimum=4 if bidirectional else 2)
    if bidirectional and buckets % 2:
        raise ValueError(f"num_buckets must be even if bidirectional, got {buckets}")
    one_way = buckets // 2 if bidirectional else buckets
    starts = _starts(one_way, count("max_distance", max_distance, minimum=one_way // 2 + 1))
    first: NDArray[np.int64] = offsets(query_offset, kv_len - q_len).astype(np.int64)
    positions = np.arange(q_len) + first[..., None]
    after = np.arange(kv_len) - positions[..., None]
    distance = np.abs(after) if bidirectional else np.maximum(-after, 0)
    result = np.searchsorted(starts, distance, side="right")
    if bidirectional:
        result += one_way * (after > 0)
    return result


def _starts(buckets: int, max_distance: int) -> NDArray[np.int64]:
    """Return the distances at which the buckets 1, 2, ... of one direction begin."""
    exact = buckets // 2
    shared = buckets - exact
    starts = list(range(1, exact + 1))
    for step in range(1, shared):
        # The least d with d / exact >= (max_distance / exact) ** (step / shared); floats are close.
        bound = exact ** (shared - step) * max_distance**step
        start = max(int(exact * (max_distance / exact) ** (step / shared)) - 1, 0)
        while start**shared < bound:
            start += 1
        starts.append(start)
    return np.array(starts, np.int64)
