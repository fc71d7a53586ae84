"""Assign distances to the buckets for which T5 learns biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, is_floating
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
        Number of keys before the first query, scalar or one per batch entry. ``"end"`` is
        ``kv_len - q_len``.
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

    See Also
    --------
    t5_distance_bias : returns the bias of each distance, which needs no memory per score.

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
    directions = _Directions.of(bidirectional, num_buckets, max_distance)
    first: NDArray[np.int64] = offsets(query_offset, kv_len - q_len).astype(np.int64)
    positions = np.arange(q_len) + first[..., None]
    return directions.buckets(np.arange(kv_len) - positions[..., None])


@refuses_unknown
def t5_distance_bias(
    table: ArrayLike, *, bidirectional: bool = True, max_distance: SupportsIndex = 128
) -> NDArray[np.floating[Any]]:
    """Convert the biases that T5 learns for its buckets to a bias for each distance.

    The result is the option `distance_bias` of attention. It is exact for any number of queries and
    keys, since all distances beyond the result are in the same bucket as its last distances.

    Parameters
    ----------
    table : array_like of float, shape (num_buckets, heads)
        The bias of each bucket and head: T5's ``relative_attention_bias.weight``.
    bidirectional, max_distance
        As for `t5_buckets`. True is for the encoder of T5, and False for its decoder.

    Returns
    -------
    numpy.ndarray of float, shape (heads, 2 n - 1)
        The bias of distance ``j - p`` between a query at position ``p`` and key ``j``, in column
        ``n - 1 + j - p``, in the type of `table`. `n` depends on the arguments of `t5_buckets`: it
        is the smallest number with which the result is exact.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `table` does not have two axes, or has a number of buckets that `t5_buckets` refuses, or
        if `max_distance` is too small.

    See Also
    --------
    t5_distance_bias_backward : computes the gradient of the table.
    regard.scaled_dot_product_attention : accepts the result as ``distance_bias``.

    Notes
    -----
    T5 does not scale its scores: pass ``scale=1.0``.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> table = np.arange(4.0)[:, None] / 4  # 4 buckets, 1 head
    >>> regard.positional.t5_distance_bias(table, max_distance=8)
    array([[0.25, 0.  , 0.75]])
    >>> bias = regard.positional.t5_distance_bias(np.ones((32, 8)))
    >>> bias.shape
    (8, 183)
    >>> query, key = np.ones((8, 300, 64)), np.ones((8, 500, 64))
    >>> regard.scaled_dot_product_attention(
    ...     query, key, key, distance_bias=bias, scale=1.0
    ... ).shape
    (8, 300, 64)
    """
    biases = as_array("table", table)
    if biases.dtype.kind in "iu":
        biases = biases.astype(np.float64)
    if not is_floating(biases.dtype):
        raise TypeError(f"table must be an array of float, got {biases.dtype}")
    if biases.ndim != 2:
        raise ValueError(f"table must have shape (num_buckets, heads), got {biases.shape}")
    directions = _Directions.of(bidirectional, len(biases), max_distance, "len(table)")
    return np.ascontiguousarray(biases[directions.buckets(directions.distances)].T)


@refuses_unknown
def t5_distance_bias_backward(
    grad: ArrayLike,
    *,
    bidirectional: bool = True,
    num_buckets: SupportsIndex = 32,
    max_distance: SupportsIndex = 128,
) -> NDArray[np.floating[Any]]:
    """Compute the gradient of T5's table from the gradient of `distance_bias`.

    The gradient of a bucket is the sum of the gradients of its distances.

    Parameters
    ----------
    grad : array_like of float, shape (heads, 2 n - 1)
        The gradient with respect to the result of `t5_distance_bias`:
        ``AttentionGradients.distance_bias``.
    bidirectional, num_buckets, max_distance
        As for `t5_distance_bias`; `num_buckets` is the length of its table.

    Returns
    -------
    numpy.ndarray of float, shape (num_buckets, heads)
        The gradient of the table, in the type of `grad`. Sums are in float64, in the order of the
        distances.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a number is out of range, or `grad` does not have the shape of the result of
        `t5_distance_bias`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> grad = np.array([[1.0, 2.0, 4.0]])
    >>> regard.positional.t5_distance_bias_backward(grad, num_buckets=4, max_distance=8)
    array([[2.],
           [1.],
           [0.],
           [4.]])
    """
    gradients = as_array("grad", grad)
    if not is_floating(gradients.dtype):
        raise TypeError(f"grad must be an array of float, got {gradients.dtype}")
    directions = _Directions.of(bidirectional, num_buckets, max_distance)
    buckets = directions.buckets(directions.distances)
    if gradients.ndim != 2 or gradients.shape[1] != len(buckets):
        raise ValueError(
            f"grad must have shape (heads, {len(buckets)}), as the result of t5_distance_bias, got "
            f"{gradients.shape}"
        )
    total = np.zeros((directions.total, len(gradients)))
    np.add.at(total, buckets, gradients.T.astype(np.float64))
    return total.astype(gradients.dtype)


class _Directions(NamedTuple):
    """The buckets of one direction or of both."""

    is_both: bool
    starts: NDArray[np.int64]
    """The distances at which the buckets 1, 2, ... of a direction begin."""

    @classmethod
    def of(
        cls,
        bidirectional: bool,
        num_buckets: SupportsIndex,
        max_distance: SupportsIndex,
        name: str = "num_buckets",
    ) -> _Directions:
        """Check the arguments of `t5_buckets`."""
        is_both = flag("bidirectional", bidirectional)
        buckets = count(name, num_buckets, minimum=4 if is_both else 2)
        if is_both and buckets % 2:
            raise ValueError(f"{name} must be even if bidirectional, got {buckets}")
        one_way = buckets // 2 if is_both else buckets
        farthest = count("max_distance", max_distance, minimum=one_way // 2 + 1)
        return cls(is_both, _starts(one_way, farthest))

    @property
    def total(self) -> int:
        """The number of buckets."""
        return (len(self.starts) + 1) * (2 if self.is_both else 1)

    @property
    def distances(self) -> NDArray[np.int64]:
        """The distances up to the last bucket of each side."""
        last = int(self.starts[-1])
        return np.arange(-last, last + 1)

    def buckets(self, after: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the buckets of keys at some distances after the query."""
        distance = np.abs(after) if self.is_both else np.maximum(-after, 0)
        result = np.searchsorted(self.starts, distance, side="right")
        if self.is_both:
            result += (len(self.starts) + 1) * (after > 0)
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
