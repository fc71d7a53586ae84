"""Statistics of attention weights, without storing the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from regard import _core
from regard._arguments.arrays import as_stored_arrays, shown
from regard._arguments.foreign import readable, with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks
from regard._arguments.numbers import count, iterated, listed
from regard._arguments.options import WeightOptions, names_of, takes_options
from regard._attention.check import check_ragged_call
from regard._recording.given import calls_of_layers, recorded_layers
from regard._recording.layer import RecordedLayer
from regard._recording.recording import Recording
from regard._runtime.progress import Progressed, check_progress, reporting
from regard._runtime.public import public
from regard._statistics.calls import call_of_weights, computed_lse, given_lse, lse_of
from regard._statistics.result import FIELDS, AttentionSummary, TopKeys, mean_over_queries
from regard._statistics.target_keys import (
    count_queries_after_key,
    induction_keys,
    sequences_of,
    token_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall
    from regard._recording.given import QueryOrRecording
    from regard._runtime.progress import Progress


DEFAULT_STATISTICS = tuple(name for name in FIELDS if name not in ("induction", "top_k"))


class SummaryRequest(NamedTuple):
    """The statistics to compute, and their numbers."""

    wanted: dict[str, bool]
    first_keys: int
    local_reach: int
    top_k: int

    @classmethod
    def of(
        cls, statistics: Iterable[str], top_k: int, first_keys: int = 4, local_reach: int = 64
    ) -> SummaryRequest:
        """Check the arguments, or raise TypeError or ValueError."""
        names = [statistics] if isinstance(statistics, str) else statistics
        names = iterated("statistics", names, "a str or some of them")
        for each in names:
            if not isinstance(each, str) or each not in FIELDS:
                raise ValueError(f"statistics must be of {listed(FIELDS)}, got {shown(each)}")
        return cls(
            {each: each in names for each in FIELDS},
            count("first_keys", first_keys),
            count("local_reach", local_reach, maximum=2**62),
            count("top_k", top_k, minimum=1),
        )

    def check_tokens(self, tokens: Any) -> None:
        """Raise TypeError if a statistic needs the tokens of keys and there are none."""
        if self.wanted["induction"] and tokens is None:
            raise TypeError("statistics with 'induction' need tokens: the token of each key")

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
    check_options(name, options, names_of(WeightOptions))
    check_progress(progress, name)
    request = SummaryRequest.of(statistics, top_k, first_keys, local_reach)
    if not isinstance(query, Recording | RecordedLayer):
        request.check_tokens(tokens)
        call = call_of_weights(query, key, mask, options)
        return summary_of(call, request, tokens, lse, progress)
    layers = recorded_layers(query, options, key=key, mask=mask, lse=lse)
    tokens_of = [layer.key_tokens if tokens is None else tokens for layer in layers]
    for each in tokens_of:
        request.check_tokens(each)
    calls = calls_of_layers(layers, options)
    rows = math.prod(calls[0].rows)
    with reporting(progress, len(calls) * rows, "query", name) as report:
        steps = Progressed(len(calls) * rows, report)
        summaries = [
            summary_of(call, request, own, progress=steps.begin(rows))
            for call, own in zip(calls, tokens_of, strict=True)
        ]
    return summaries[0] if isinstance(query, RecordedLayer) else _stacked(summaries)


def _stacked(summaries: list[AttentionSummary]) -> AttentionSummary:
    """Return the summaries of layers as one, whose arrays have a first axis for the layers."""
    fields: list[Any] = []
    for of_layers in zip(*summaries, strict=True):
        if isinstance(of_layers[0], TopKeys):
            fields.append(TopKeys(*map(np.stack, zip(*of_layers, strict=True))))
        else:
            fields.append(None if of_layers[0] is None else np.stack(of_layers))
    return AttentionSummary(*fields)


def summary_of(
    call: CheckedCall,
    request: SummaryRequest,
    tokens: ArrayLike | None,
    lse: ArrayLike | None = None,
    progress: Progress = None,
) -> AttentionSummary:
    """Return the statistics of a checked call, whose `tokens` the request has checked."""
    lse = lse_of(call, lse)
    targets = None
    if request.wanted["induction"]:
        assert tokens is not None
        targets = induction_keys(call.positions, call.sizes.batch, tokens)
        targets = np.broadcast_to(targets[..., None, :] if call.has_heads else targets, call.rows)
    arguments = call.query, call.key, call.masks.argument, call.options, lse
    with reporting(progress, lse.size, "query", "summarize_attention") as report:
        found = request.compute(_core.attention_summary, arguments, targets, report)
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
    check_options(name, options, names_of(WeightOptions))
    check_progress(progress, name)
    request = SummaryRequest.of(statistics, top_k, first_keys, local_reach)
    request.check_tokens(tokens)
    if mask is not None:
        warn_if_zero_one(mask)
    options = with_arrays(options)
    query, key = as_stored_arrays(query=query, key=key)
    mask = Masks.of(mask).argument
    starts = readable("query_starts", query_starts), readable("key_starts", key_starts)
    check_ragged_call(query, key, None, *starts, mask, options)
    rows = query.shape[:2]
    if lse is None:
        lse = computed_lse(_core.attention_ragged, (query, key), starts, mask, options)
    else:
        lse = given_lse(lse, rows)
    sequences = list(sequences_of(*starts, options))
    counts = {"previous_token": [count_queries_after_key(each.positions) for each in sequences]}
    targets = None
    if request.wanted["induction"]:
        assert tokens is not None
        targets = np.empty(rows, np.int64)
        token_of_key = token_numbers(tokens)
        if token_of_key.shape != (len(key),):
            raise ValueError(
                f"tokens must have shape (total_keys,) = {(len(key),)}, got shape "
                f"{token_of_key.shape}"
            )
        for each in sequences:
            own = induction_keys(each.positions, (), token_of_key[each.keys])
            targets[each.queries] = own[:, None]
        counts["induction"] = [(targets[each.queries, 0] >= 0).sum() for each in sequences]
    arguments = query, key, *starts, mask, options, lse
    with reporting(progress, lse.size, "query", name) as report:
        found = request.compute(_core.attention_ragged_summary, arguments, targets, report)
    for field, queries in counts.items():
        if (picked := found[field]) is not None:
            means = [
                mean_over_queries(picked[each.queries].T, number)
                for each, number in zip(sequences, queries, strict=True)
            ]
            found[field] = np.array(means, picked.dtype).reshape(len(sequences), rows[1])
    return AttentionSummary(**found)
