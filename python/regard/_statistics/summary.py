"""Statistics of attention weights, without storing the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from regard import _core
from regard._arguments.arrays import check_shape, shown
from regard._arguments.foreign import readable, with_arrays
from regard._arguments.hints import raise_with_hint, warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.numbers import count, iterated, listed
from regard._arguments.options import WeightOptions, names_of, takes_options
from regard._attention.check import check_call, check_ragged_call
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard._runtime.progress import check_progress, reporting
from regard._runtime.public import public
from regard._statistics.calls import LayerResults, compute_lse, pair_of
from regard._statistics.result import FIELDS, AttentionSummary, TopKeys, mean_over_queries
from regard._statistics.target_keys import (
    count_queries_after_key,
    induction_keys,
    sequences_of,
    token_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard._recording.given import QueryOrRecording
    from regard._runtime.progress import Progress

    Array = NDArray[Any]


DEFAULT_STATISTICS = tuple(name for name in FIELDS if name not in ("induction", "top_k"))


class SummaryRequest(NamedTuple):
    """The checked arguments of a call, without the arguments of attention."""

    wanted: dict[str, bool]
    first_keys: int
    local_reach: int
    top_k: int

    @classmethod
    def of(
        cls,
        name: str,
        options: Mapping[str, Any],
        statistics: Iterable[str],
        top_k: int,
        first_keys: int,
        local_reach: int,
        tokens: ArrayLike | None,
    ) -> SummaryRequest:
        """Check the arguments, and that the function of this name accepts the options."""
        check_options(name, options, names_of(WeightOptions))
        names = [statistics] if isinstance(statistics, str) else statistics
        names = iterated("statistics", names, "a str or some of them")
        for each in names:
            if not isinstance(each, str) or each not in FIELDS:
                raise ValueError(f"statistics must be of {listed(FIELDS)}, got {shown(each)}")
        if "induction" in names and tokens is None:
            raise TypeError("statistics with 'induction' need tokens: the token of each key")
        return cls(
            {each: each in names for each in FIELDS},
            count("first_keys", first_keys),
            count("local_reach", local_reach, maximum=2**62),
            count("top_k", top_k, minimum=1),
        )

    def compute(
        self, function: Callable[..., Any], arguments: Any, targets: Array | None, report: Any
    ) -> dict[str, Any]:
        """Call a function of the compiled module, and return its results by name.

        `previous_token` and `induction` are weights of single keys, which are not averaged yet.
        """
        numbers = tuple(self.wanted.values()), self.first_keys, self.local_reach, self.top_k
        *fields, top_keys = function(*arguments, *numbers, targets, report)
        found = dict(zip(FIELDS, fields, strict=True))
        if found["top_k"] is not None:
            found["top_k"] = TopKeys(top_keys, found["top_k"])
        return found


@public
@takes_options(WeightOptions)
def summarize_attention(
    query: QueryOrRecording,
    key: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    statistics: Iterable[str] = DEFAULT_STATISTICS,
    top_k: int = 8,
    first_keys: int = 4,
    local_reach: int = 64,
    tokens: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> AttentionSummary:
    r"""Compute statistics of the weights of scaled-dot-product attention, without storing them.

    With the weights :math:`w_{ij}` of query i, which is at position p, for key j:

    ================== ==================================================================
    entropy            :math:`-\sum_j w_{ij} \log w_{ij}` [1]_
    max                :math:`\max_j w_{ij}`
    effective_count    :math:`(\sum_j w_{ij})^2 / \sum_j w_{ij}^2`
    mean_distance      :math:`\sum_j w_{ij} |p - j|` [2]_
    first_mass         :math:`\sum_{j < \mathrm{first\_keys}} w_{ij}` [3]_
    local_mass         :math:`\sum_{|p - j| \le \mathrm{local\_reach}} w_{ij}`
    column_sums        :math:`\sum_i w_{ij}`, the weight that key j receives [4]_
    column_means       column_sums divided by the number of queries that see key j
    previous_token     the mean over queries of :math:`w_{i, p - 1}` [5]_
    induction          the mean over queries of the weight on the key after the last earlier
                       occurrence of the query's token [5]_
    top_k              the keys with the largest weights, and the weights
    ================== ==================================================================

    Parameters
    ----------
    query : array_like, shape (..., heads, q_len, head_dim), or Recording or RecordedLayer
        As for `scaled_dot_product_attention`. A recording has its own keys, masks, options and
        tokens; the arrays of the result have a first axis for its layers.
    key : array_like, shape (..., kv_heads, kv_len, head_dim)
        Likewise. It must be omitted with a recording, like `mask`, `lse` and most options.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        As for `scaled_dot_product_attention`, like all options that are not described here.
    statistics : iterable of str, default all but "induction" and "top_k"
        The fields of the result to compute.
    top_k : int, default 8
        The number of keys per query in the field `top_k`.
    first_keys : int, default 4
        The number of keys that count as the first keys.
    local_reach : int, default 64
        The largest distance from the query at which a key counts as local.
    tokens : array_like of int or str, shape (..., kv_len), optional
        The token of each key, as a number or as text, for all batch entries or for each entry.
        Required for "induction", in which a query has the token of the key at its position.
    lse : array_like, shape (..., heads, q_len), optional
        The lse of the forward call with the same arguments, returned with ``return_lse=True``. If
        it is not given, it is computed first, which takes about half of the forward call's time.
    progress : bool or callable, optional
        True shows a progress bar, which requires the tqdm or rich package. A function is called
        from time to time, in the caller's thread, with the number of completed queries and the
        total number, over all heads. An exception that it raises ends the call.
    {options}

    Returns
    -------
    AttentionSummary
        Named tuple of arrays, float64 if query or key is float64, else float32.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or "induction" is requested without `tokens`.
    ImportError
        If `progress` is True and neither tqdm nor rich is installed.
    ValueError
        If shapes disagree, a number is out of range, or a statistic is unknown.
    MemoryError
        If a result or the workspace cannot be allocated.

    See Also
    --------
    scaled_dot_product_attention : returns the weights, with ``return_weights=True``.

    Notes
    -----
    In addition to the results, a call needs a fixed amount of memory per thread, and up to 128
    bytes for each key of some heads if sums over queries are requested.

    With `sinks`, the weights of a query add up to less than 1. All statistics, including entropy
    and masses, are computed from these weights without renormalization.

    `lse` is not checked: the lse of other arguments yields meaningless numbers.

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
    name = "summarize_attention"
    if isinstance(query, Recording | RecordedLayer):
        recorded = LayerResults(query, options, key=key, mask=mask, lse=lse)
        known = tokens
        if tokens is None and all(layer.key_tokens is not None for layer in recorded.layers):
            known = recorded.layers[0].key_tokens
        request = SummaryRequest.of(
            name, options, statistics, top_k, first_keys, local_reach, known
        )
        return _summary_of_layers(recorded, request, tokens, progress)
    request = SummaryRequest.of(name, options, statistics, top_k, first_keys, local_reach, tokens)
    if key is None:
        raise TypeError("key must be an array, got None: only a recording needs no key")
    return summary_of(request, query, key, mask, options, tokens, lse, progress)


def _summary_of_layers(
    recorded: LayerResults, request: SummaryRequest, tokens: ArrayLike | None, progress: Progress
) -> AttentionSummary:
    """Return the statistics of the layers of a recording."""

    def of_layer(
        layer: RecordedLayer, arguments: tuple[Any, Any, Any, Any], report: Any
    ) -> AttentionSummary:
        own = layer.key_tokens if tokens is None else tokens
        return summary_of(request, *arguments, own, None, report)

    name = "summarize_attention"
    summaries = recorded.compute(of_layer, name, progress, lambda call: math.prod(call.rows))
    joined: dict[str, Any] = {}
    for field in AttentionSummary._fields:
        each = [getattr(summary, field) for summary in summaries]
        if isinstance(each[0], TopKeys):
            joined[field] = TopKeys(*(recorded.join(list(x)) for x in zip(*each, strict=True)))
        elif each[0] is not None:
            joined[field] = recorded.join(each)
    return AttentionSummary(**joined)


def summary_of(
    request: SummaryRequest,
    query: ArrayLike,
    key: ArrayLike,
    mask: ArrayLike | None,
    options: Any,
    tokens: ArrayLike | None,
    lse: ArrayLike | None,
    progress: Progress,
) -> AttentionSummary:
    """Implement `summarize_attention`, with the options of any part of a checked call."""
    check_progress(progress, "summarize_attention")
    if mask is not None:
        warn_if_zero_one(mask)
    options = with_arrays(options)
    query, key = pair_of(query, key, 2, "at least 2 dimensions, (length, dim)")
    call = check_call(query, key, None, mask, options)
    try:
        lse = compute_lse(_core.attention, (query, key), (), call.masks.argument, options, lse)
        targets = None
        if tokens is not None and request.wanted["induction"]:
            targets = induction_keys(call.positions, call.sizes.batch, tokens)
            of_heads = targets[..., None, :] if call.has_heads else targets
            targets = np.broadcast_to(of_heads, call.rows)
        arguments = query, key, call.masks.argument, options, lse
        with reporting(progress, lse.size, "query", "summarize_attention") as report:
            found = request.compute(_core.attention_summary, arguments, targets, report)
    except ValueError as error:
        raise_with_hint(error, query, key)
    if request.wanted["previous_token"]:
        queries = count_queries_after_key(call.positions)
        queries = queries[..., None] if call.has_heads else queries
        found["previous_token"] = mean_over_queries(found["previous_token"], queries)
    if targets is not None:
        found["induction"] = mean_over_queries(found["induction"], (targets >= 0).sum(axis=-1))
    return AttentionSummary(**found)


@public
@takes_options(WeightOptions)
def summarize_attention_ragged(
    query: ArrayLike,
    key: ArrayLike,
    query_starts: ArrayLike,
    key_starts: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    statistics: Iterable[str] = DEFAULT_STATISTICS,
    top_k: int = 8,
    first_keys: int = 4,
    local_reach: int = 64,
    tokens: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
    **options: Unpack[WeightOptions],
) -> AttentionSummary:
    """Compute statistics of the weights of attention over packed sequences, without storing them.

    The results of each sequence are bitwise equal to a separate call of `summarize_attention`.

    Parameters
    ----------
    query : array_like, shape (total_queries, heads, head_dim)
        The queries of all sequences.
    key : array_like, shape (total_keys, kv_heads, head_dim)
        The keys of all sequences.
    query_starts, key_starts, mask
        As for `scaled_dot_product_attention_ragged`.
    tokens : array_like of int or str, shape (total_keys,), optional
        The token of each key. Required for "induction".
    lse : array_like, shape (total_queries, heads), optional
        The lse of the forward call with the same arguments, returned with ``return_lse=True``.
    statistics, top_k, first_keys, local_reach, progress
        See `summarize_attention`.
    {options}

    Returns
    -------
    AttentionSummary
        Named tuple of arrays. Fields of queries have shape (total_queries, heads), or
        (total_queries, heads, top_k); fields of keys have shape (total_keys, heads); and fields of
        heads have shape (sequences, heads). Key numbers are counted within the sequence.

    Raises
    ------
    TypeError, ImportError, ValueError, MemoryError
        As `summarize_attention`.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> words = rng.standard_normal((5, 4, 16))
    >>> starts = [0, 2, 5]
    >>> summary = regard.summarize_attention_ragged(words, words, starts, starts)
    >>> summary.entropy.shape, summary.previous_token.shape
    ((5, 4), (2, 4))
    """
    name = "summarize_attention_ragged"
    request = SummaryRequest.of(name, options, statistics, top_k, first_keys, local_reach, tokens)
    check_progress(progress, name)
    if mask is not None:
        warn_if_zero_one(mask)
    options = with_arrays(options)
    query, key = pair_of(query, key, 3, "3 dimensions, (total, heads, dim)")
    mask = Masks.of(mask).argument
    starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
    check_ragged_call(query, key, None, *starts, mask, options)
    lse = compute_lse(_core.attention_ragged, (query, key), starts, mask, options, lse)
    check_shape("lse", lse, query.shape[:2], "the forward call's lse")
    sequences = list(sequences_of(*starts, options))
    targets = None
    if tokens is not None and request.wanted["induction"]:
        targets = np.empty(lse.shape, np.int64)
        token_of_key = token_numbers(tokens)
        if token_of_key.shape != (len(key),):
            raise ValueError(
                f"tokens must have shape (total_keys,) = {(len(key),)}, got shape "
                f"{token_of_key.shape}"
            )
        for each in sequences:
            own = induction_keys(each.positions, (), token_of_key[each.keys])
            targets[each.queries] = own[:, None]
    arguments = query, key, *starts, mask, options, lse
    with reporting(progress, lse.size, "query", name) as report:
        found = request.compute(_core.attention_ragged_summary, arguments, targets, report)
    counts: dict[str, list[Any]] = {
        "previous_token": [count_queries_after_key(each.positions) for each in sequences]
    }
    if targets is not None:
        counts["induction"] = [(targets[each.queries, 0] >= 0).sum() for each in sequences]
    for field, queries in counts.items():
        if (picked := found[field]) is not None:
            found[field] = np.empty((len(sequences), lse.shape[1]), picked.dtype)
            for number, each in enumerate(sequences):
                rows = picked[each.queries].T
                found[field][number] = mean_over_queries(rows, queries[number])
    return AttentionSummary(**found)
