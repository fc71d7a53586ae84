"""Requests for statistics of attention weights, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from regard._arguments.arrays import as_lse, as_stored_arrays, shown
from regard._arguments.keywords import check_options
from regard._arguments.numbers import count, iterated, listed
from regard._arguments.options import WeightOptions, names_of
from regard._runtime.public import public
from regard._statistics.frame import OF_HEADS, OF_KEYS, OF_QUERIES, dict_of, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

# The results of the compiled module, in order.
_RESULTS = (*OF_QUERIES, *OF_HEADS, "top_k", *OF_KEYS)
DEFAULT_STATISTICS = tuple(name for name in _RESULTS if name not in ("induction", "top_k"))


@public
class TopKeys(NamedTuple):
    """The keys with the largest weights of each query, in descending order of weight.

    Keys of weight 0 are omitted: if there are fewer than `top_k` other keys, the remaining places
    contain key -1 and weight 0.
    """

    keys: NDArray[np.int64]
    """Shape (..., heads, q_len, top_k)."""
    weights: Array
    """Of the same shape."""


@public
class AttentionSummary(NamedTuple):
    """Statistics of the weights of an attention call.

    A field is None if it was not requested. Fully masked rows have 0 in every field.
    """

    entropy: Array | None = None
    """Shape (..., heads, q_len): of each query's weights, in nats."""
    max: Array | None = None
    """Shape (..., heads, q_len): each query's largest weight."""
    effective_count: Array | None = None
    """Shape (..., heads, q_len): the squared sum of the weights over the sum of their squares.
    This is n for n equal weights, even with a sink."""
    mean_distance: Array | None = None
    """Shape (..., heads, q_len): the mean of \\|p - j\\| over keys j, weighted."""
    first_mass: Array | None = None
    """Shape (..., heads, q_len): the weight on the first `first_keys` keys."""
    local_mass: Array | None = None
    """Shape (..., heads, q_len): the weight on keys with \\|p - j\\| <= `local_reach`."""
    column_sums: Array | None = None
    """Shape (..., heads, kv_len): the weight that each key receives from all queries."""
    column_means: Array | None = None
    """Shape (..., heads, kv_len): the mean weight of each key over the queries that see it."""
    previous_token: Array | None = None
    """Shape (..., heads): the mean weight on the key before the query's position, over the queries
    that have such a key; NaN if there are none."""
    induction: Array | None = None
    """Shape (..., heads): the mean weight on the key after the last earlier occurrence of the
    query's token, over the queries that have such a key; NaN if there are none."""
    top_k: TopKeys | None = None

    def to_dict(self) -> dict[str, Array]:
        """Return the fields that are not None, by name.

        The keys and weights of `top_k` are two entries, ``"top_k_keys"`` and ``"top_k_weights"``.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays of the summary themselves.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> x = np.random.default_rng(0).standard_normal((4, 6, 16))
        >>> summary = regard.summarize_attention(x, x, statistics=("max", "top_k"), top_k=2)
        >>> {name: array.shape for name, array in summary.to_dict().items()}
        {'max': (4, 6), 'top_k_keys': (4, 6, 2), 'top_k_weights': (4, 6, 2)}
        """
        return dict_of(self)

    def to_frame(
        self,
        by: Literal["head", "query", "key"] = "head",
        *,
        query_starts: ArrayLike | None = None,
        key_starts: ArrayLike | None = None,
    ) -> Any:
        """Return the statistics as a pandas table, with a row per head, query or key.

        Parameters
        ----------
        by : {"head", "query", "key"}, default "head"
            The items that have a row. Tables by ``"query"`` and ``"key"`` contain the fields of
            queries and of keys, where `top_k` becomes the columns ``top_key_0``, ``top_weight_0``,
            ``top_key_1`` and so on. Tables by ``"head"`` contain the fields of heads, and the means
            of the fields of queries over the queries that see a key, with the mean weight on all
            top keys as ``top_k_mass``.
        query_starts, key_starts : array_like of int, optional
            As passed to `summarize_attention_ragged`, for a summary of packed sequences:
            `query_starts` for rows of heads and queries, and `key_starts` for rows of keys.

        Returns
        -------
        pandas.DataFrame
            The levels of the index are ``"head"``, and ``"query"`` or ``"key"``. A single axis
            before heads is ``"layer"``; several axes are ``"batch0"``, ``"batch1"`` and so on.
            Packed sequences have the level ``"sequence"``, and number their queries and keys from
            0.

        Raises
        ------
        ImportError
            If pandas is not installed.
        TypeError
            If a starts array does not consist of integers.
        ValueError
            If `by` is unknown, the summary has no field for the table, its fields do not have the
            same axes (..., heads), or the starts do not match.

        Notes
        -----
        A fully masked query has 0 in every field. It is excluded from the means if the summary has
        `effective_count`, `max` or `top_k`, which identify such queries. Otherwise, the means
        include all queries. The mean over 0 queries is NaN, and NaN in a query makes the mean NaN.

        A summary does not record whether its sequences are packed. If they are, pass the starts.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> x = np.random.default_rng(0).standard_normal((2, 4, 6, 16))  # two layers of four heads
        >>> summary = regard.summarize_attention(x, x, is_causal=True)
        >>> frame = summary.to_frame()  # doctest: +SKIP
        >>> frame["entropy"].unstack("head").shape  # doctest: +SKIP
        (2, 4)
        """
        return frame_of(self, by, query_starts, key_starts)


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
        names = (
            [statistics]
            if isinstance(statistics, str)
            else iterated("statistics", statistics, "a str or some of them")
        )
        for each in names:
            if not isinstance(each, str) or each not in _RESULTS:
                raise ValueError(f"statistics must be of {listed(_RESULTS)}, got {shown(each)}")
        if "induction" in names and tokens is None:
            raise TypeError("statistics with 'induction' need tokens: the token of each key")
        return cls(
            {each: each in names for each in _RESULTS},
            count("first_keys", first_keys),
            count("local_reach", local_reach, maximum=2**62),
            count("top_k", top_k, minimum=1),
        )

    def words(self, targets: Array | None) -> tuple[tuple[bool, ...], int, int, int, Array | None]:
        """Return the arguments of the compiled module after lse."""
        wanted = tuple(self.wanted.values())
        return wanted, self.first_keys, self.local_reach, self.top_k, targets

    def answer(self, results: tuple[Any, ...]) -> dict[str, Any]:
        """Return the results of the compiled module by name.

        `previous_token` and `induction` are weights of single keys, which are not averaged yet.
        """
        *fields, top_keys = results
        found = dict(zip(_RESULTS, fields, strict=True))
        if found["top_k"] is not None:
            found["top_k"] = TopKeys(top_keys, found["top_k"])
        return found


def pair_of(query: ArrayLike, key: ArrayLike, axes: int, wanted: str) -> tuple[Array, Array]:
    """Return the arrays of a call, or raise if one has fewer than `axes` axes."""
    query, key = as_stored_arrays(query=query, key=key)
    for name, array in (("query", query), ("key", key)):
        if array.ndim < axes:
            raise ValueError(f"{name} must have {wanted}, got shape {array.shape}")
    return query, key


def compute_lse(
    attention: Callable[..., Any],
    arrays: tuple[Array, Array],
    starts: tuple[ArrayLike, ...],
    mask: Any,
    options: WeightOptions,
    lse: ArrayLike | None,
) -> Array:
    """Return the lse of a call, computed by the forward call with values without columns."""
    if lse is None:
        query, key = arrays
        words = {**options, "return_lse": True, "_wide_lse": True}
        _, computed = attention(query, key, key[..., :0], *starts, mask, words)
        return np.asarray(computed)
    given = as_lse(lse)
    if given.ndim == 0:
        raise ValueError("lse must be an array of numbers, one for each query, got shape ()")
    return given
