"""What attention's weights are like, without having them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from regard import _core
from regard._arguments import count
from regard._arrays import as_masks, as_stored_arrays
from regard._call import check_options, raise_with_hint
from regard._hints import warn_if_zero_one
from regard._options import WeightOptions, takes_options
from regard._target_keys import induction_keys, queries_after_a_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_NAME = "summarize_attention"
# What the compiled module returns, in its order.
_RESULTS = (
    "entropy",
    "max",
    "effective_count",
    "mean_distance",
    "sink_mass",
    "local_mass",
    "previous_token",
    "induction",
    "top_k",
    "column_sums",
    "column_means",
)
_OTHERS = ("statistics", "top_k", "sink_keys", "local_reach", "tokens", "lse", "progress")
_DEFAULT = tuple(name for name in _RESULTS if name not in ("induction", "top_k"))


class TopKeys(NamedTuple):
    """The keys with the largest weights of each query, in falling order of the weights.

    Keys of weight 0 are left out: where there are fewer than `top_k` others, the last places hold
    key -1 and weight 0.
    """

    keys: NDArray[np.int64]
    """Shape (..., heads, q_len, top_k)."""
    weights: Array
    """Of the same shape."""


class AttentionSummary(NamedTuple):
    """What the weights of an attention call are like.

    Each field is None where it was not asked for. Queries that see no key have 0 everywhere.
    """

    entropy: Array | None = None
    """Shape (..., heads, q_len): of each query's weights, in nats."""
    max: Array | None = None
    """Shape (..., heads, q_len): each query's largest weight."""
    effective_count: Array | None = None
    """Shape (..., heads, q_len): 1 / sum of squared weights, which is n for n equal weights."""
    mean_distance: Array | None = None
    """Shape (..., heads, q_len): the mean of \\|p - j\\| over keys j, weighted."""
    sink_mass: Array | None = None
    """Shape (..., heads, q_len): the weight on the first `sink_keys` keys."""
    local_mass: Array | None = None
    """Shape (..., heads, q_len): the weight on keys with \\|p - j\\| <= `local_reach`."""
    column_sums: Array | None = None
    """Shape (..., heads, kv_len): the weight that each key gets from all queries."""
    column_means: Array | None = None
    """Shape (..., heads, kv_len): the mean of that over the queries that see the key."""
    previous_token: Array | None = None
    """Shape (..., heads): the mean weight on the key before the query's position, over the queries
    that have one; NaN where none has."""
    induction: Array | None = None
    """Shape (..., heads): the mean weight on the key after the last earlier occurrence of the
    query's token, over the queries that have one; NaN where none has."""
    top_k: TopKeys | None = None


@takes_options(WeightOptions)
def summarize_attention(
    query: ArrayLike,
    key: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    statistics: Iterable[str] = _DEFAULT,
    top_k: int = 8,
    sink_keys: int = 4,
    local_reach: int = 64,
    tokens: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    progress: Callable[[int, int], object] | None = None,
    **options: Unpack[WeightOptions],
) -> AttentionSummary:
    r"""Say what the weights of scaled-dot-product attention are like, without storing them.

    With the weights :math:`w_{ij}` of query i, which stands at position p, for key j:

    ================== ==================================================================
    entropy            :math:`-\sum_j w_{ij} \log w_{ij}` [1]_
    max                :math:`\max_j w_{ij}`
    effective_count    :math:`1 / \sum_j w_{ij}^2`
    mean_distance      :math:`\sum_j w_{ij} |p - j|` [2]_
    sink_mass          :math:`\sum_{j < \mathrm{sink\_keys}} w_{ij}` [3]_
    local_mass         :math:`\sum_{|p - j| \le \mathrm{local\_reach}} w_{ij}`
    column_sums        :math:`\sum_i w_{ij}`, what key j gets [4]_
    column_means       column_sums divided by the number of queries that see key j
    previous_token     the mean over queries of :math:`w_{i, p - 1}` [5]_
    induction          the mean over queries of the weight on the key after the last earlier
                       occurrence of the query's token [5]_
    top_k              the keys with the largest weights, and these
    ================== ==================================================================

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim)
        As for `scaled_dot_product_attention`.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        Likewise.
    mask : array_like of bool or float, or a pair (bool, float) of both, optional
        As for `scaled_dot_product_attention`, like all options that are not described here.
    statistics : iterable of str, default all but "induction" and "top_k"
        The fields of the result to compute.
    top_k : int, default 8
        How many keys the field `top_k` has for each query.
    sink_keys : int, default 4
        How many keys count as the first ones.
    local_reach : int, default 64
        How far a key may be from the query to be local.
    tokens : array_like of int, shape (..., kv_len), optional
        Which token each key belongs to, for all batch entries or for each. Needed for "induction",
        where queries have the token of the key at their position.
    lse : array_like, shape (..., heads, q_len), optional
        What the forward call with the same arguments returned with ``return_lse=True``. Without it,
        it is computed first, which takes about half of the forward call's time.
    progress : callable, optional
        Called now and then as ``progress(done, all)``, with numbers of queries of all heads.
    is_causal, query_offset, window, key_lengths, left_padding, scale, softcap, alibi_slopes, sinks
        As for `scaled_dot_product_attention`.
    threads : int, optional
        At most this many threads. Default: see `set_num_threads`. The result has the same bits for
        any number.

    Returns
    -------
    AttentionSummary
        Named tuple of arrays, float64 if query or key is, else float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or "induction" is asked for without `tokens`.
    ValueError
        If shapes disagree, a number is out of range, or a statistic is unknown.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    scaled_dot_product_attention : has the weights, with ``return_weights=True``.

    Notes
    -----
    Beside the results, a call needs a fixed amount of memory per thread, and up to 128 bytes for
    each key of some heads where sums over queries are asked for.

    With `sinks`, the weights of a query add up to less than 1, and everything is said of these
    weights as they are.

    References
    ----------
    .. [1] Zhai et al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse",
       2023. https://arxiv.org/abs/2303.06296
    .. [2] Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020, figure 7.
       https://arxiv.org/abs/2010.11929
    .. [3] Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023.
       https://arxiv.org/abs/2309.17453
    .. [4] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
       Language Models", 2023. https://arxiv.org/abs/2306.14048
    .. [5] Olsson et al., "In-context Learning and Induction Heads", 2022.
       https://arxiv.org/abs/2209.11895

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> query, key = rng.standard_normal((2, 4, 100, 16))
    >>> summary = regard.summarize_attention(
    ...     query, key, is_causal=True, statistics=("entropy", "column_sums", "top_k"), top_k=3
    ... )
    >>> summary.entropy.shape, summary.column_sums.shape, summary.top_k.keys.shape
    ((4, 100), (4, 100), (4, 100, 3))
    >>> summary.entropy[:, 0]  # the first query sees one key
    array([0., 0., 0., 0.])
    """
    check_options(_NAME, options, (*_OTHERS, *WeightOptions.__annotations__))
    wanted = _wanted(statistics, tokens)
    numbers = count("sink_keys", sink_keys), count("local_reach", local_reach)
    if mask is not None:
        warn_if_zero_one(mask)
    query, key = as_stored_arrays(query=query, key=key)
    mask = as_masks(mask)
    try:
        lse = lse_of(query, key, mask, options, lse)
        targets = None
        if tokens is not None and wanted["induction"]:
            targets = induction_keys(query, key, tokens, options)
        results = _core.attention_summary(
            query,
            key,
            mask,
            options,
            lse,
            tuple(wanted.values()),
            *numbers,
            count("top_k", top_k, minimum=1),
            targets if targets is None else _of_every_head(targets, lse.shape),
            progress,
        )
    except ValueError as error:
        raise_with_hint(error, query, key)
    *fields, top_keys = results
    found = dict(zip(_RESULTS, fields, strict=True))
    if wanted["effective_count"]:
        squares = found["effective_count"]
        np.divide(1, squares, out=squares, where=squares != 0)
    if wanted["previous_token"]:
        queries = queries_after_a_key(query, key, options)
        found["previous_token"] = _means(found["previous_token"], queries)
    if targets is not None:
        queries = np.asarray((targets >= 0).sum(axis=-1))
        found["induction"] = _means(found["induction"], queries)
    if wanted["top_k"]:
        found["top_k"] = TopKeys(top_keys, found["top_k"])
    return AttentionSummary(**found)


def lse_of(
    query: Array, key: Array, mask: Any, options: WeightOptions, lse: ArrayLike | None
) -> Array:
    """Return the lse of a call, computed by the forward call with values of no columns."""
    if lse is None:
        _, computed = _core.attention(
            query, key, key[..., :0], mask, {**options, "return_lse": True}
        )
        return np.asarray(computed)
    (given,) = as_stored_arrays(lse=lse)
    return given.astype(np.float32) if given.dtype.itemsize == 2 else given


def _wanted(statistics: Iterable[str], tokens: ArrayLike | None) -> dict[str, bool]:
    names = [statistics] if isinstance(statistics, str) else list(statistics)
    for name in names:
        if name not in _RESULTS:
            raise ValueError(
                f"statistics must be of {', '.join(AttentionSummary._fields)}, got {name!r}"
            )
    if "induction" in names and tokens is None:
        raise TypeError("statistics with 'induction' need tokens: the token of each key")
    return {name: name in names for name in _RESULTS}


def _of_every_head(numbers: Array, shape: tuple[int, ...]) -> Array:
    """Return numbers of shape (..., q_len) for the heads of `shape`, (..., heads, q_len)."""
    return np.broadcast_to(numbers[..., None, :] if len(shape) > 1 else numbers, shape)


def _means(picked: Array, queries: Array) -> Array:
    """Return each head's mean over the queries that have the key in question."""
    sums = picked.sum(axis=-1, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        means = sums / (queries[..., None] if sums.ndim else queries)
    return np.asarray(means).astype(picked.dtype)
