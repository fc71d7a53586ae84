"""Summaries of attention weights, as named tuples, dictionaries and pandas tables."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from regard._arguments.numbers import choice, listed, token_counts
from regard._runtime.public import needed, public

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.arrays import Array


# The fields that describe queries, keys and heads; top_k describes queries too.
OF_QUERIES = ("entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass")
OF_KEYS = ("column_sums", "column_means")
OF_HEADS = ("previous_token", "induction")
# The results of the compiled module, in order.
FIELDS = (*OF_QUERIES, *OF_HEADS, "top_k", *OF_KEYS)


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
        found: dict[str, Any] = {k: v for k, v in self._asdict().items() if v is not None}
        if self.top_k is not None:
            del found["top_k"]
            found["top_k_keys"], found["top_k_weights"] = self.top_k
        return found

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
        return _frame_of(self, by, query_starts, key_starts)


def leading_axes(summary: AttentionSummary, advice: str) -> tuple[int, ...]:
    """Return the axes (..., heads), or raise ValueError if two fields differ."""
    shapes = {name: np.shape(array) for name, array in summary.to_dict().items()}
    own_axes = {"top_k_keys": 2, "top_k_weights": 2, **dict.fromkeys(OF_HEADS, 0)}
    leads = {name: shape[: len(shape) - own_axes.get(name, 1)] for name, shape in shapes.items()}
    first = next(iter(leads))
    for name, lead in leads.items():
        if lead != leads[first]:
            raise ValueError(
                f"summary must have the same axes (..., heads) in all fields, got {first} of shape "
                f"{shapes[first]} and {name} of shape {shapes[name]}: {advice}"
            )
    return leads[first]


def mean_over_queries(picked: Array, queries: Array) -> Array:
    """Return each head's mean over the given number of queries, or NaN for 0 queries."""
    rows = np.ascontiguousarray(picked)  # the memory order affects the last bit of the sum
    sums = np.asarray(rows.sum(axis=-1, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / queries).astype(picked.dtype)


def _frame_of(
    summary: AttentionSummary,
    by: str,
    query_starts: ArrayLike | None,
    key_starts: ArrayLike | None,
) -> Any:
    """Return a summary as a table with a row for each head, query or key."""
    by = choice("by", by, ("head", "query", "key"))
    columns = _columns(summary, by)
    if not columns:
        raise ValueError(
            f"summary must have a field for a table by={by!r}, got {listed(summary.to_dict())}"
        )
    pandas = needed("pandas", "AttentionSummary.to_frame", "pandas")
    if query_starts is None and key_starts is None:
        leading_axes(
            summary,
            "pass query_starts= and key_starts= for a summary of summarize_attention_ragged, where "
            "heads come last",
        )
        return _table(pandas, columns, by)
    name, starts = ("key_starts", key_starts) if by == "key" else ("query_starts", query_starts)
    if starts is None:
        raise ValueError(f"{name} must be passed for a table by={by!r} of packed sequences")
    ends = _ends(columns, name, starts)
    is_empty = len(ends) == 1
    if is_empty:  # the levels and types of the table of an empty sequence
        ends = [0, 0]
        columns = {
            field: np.zeros((1, *array.shape[1:]), array.dtype) if field in OF_HEADS else array
            for field, array in columns.items()
        }
    tables = {}
    for number, part in enumerate(pairwise(ends)):
        of_sequence = {
            field: array[number] if field in OF_HEADS else array[slice(*part)].T
            for field, array in columns.items()
        }
        tables[number] = _table(pandas, of_sequence, by)
    table = pandas.concat(tables, names=["sequence"])
    return table[:0] if is_empty else table


def _columns(summary: AttentionSummary, by: str) -> dict[str, Array]:
    """Return the arrays of a table. For rows of heads, fields of queries are not averaged yet."""
    names = {"head": (*OF_QUERIES, *OF_HEADS), "query": OF_QUERIES, "key": OF_KEYS}
    found: dict[str, Any] = {name: getattr(summary, name) for name in names[by]}
    found = {name: np.asarray(field) for name, field in found.items() if field is not None}
    if summary.top_k is None or by == "key":
        return found
    keys, weights = map(np.asarray, summary.top_k)
    if by == "head":
        of_heads = {name: found.pop(name) for name in OF_HEADS if name in found}
        return found | {"top_k_mass": weights.sum(axis=-1)} | of_heads
    for i in range(keys.shape[-1]):
        found |= {f"top_key_{i}": keys[..., i], f"top_weight_{i}": weights[..., i]}
    return found


def _table(pandas: Any, columns: dict[str, Array], by: str) -> Any:
    """Return a table of fields that begin with the axes (..., heads)."""
    if by == "head":
        columns = _of_heads(columns)
    shape = next(iter(columns.values())).shape
    batch = len(shape) - (1 if by == "head" else 2)
    names = ["layer"] if batch == 1 else [f"batch{i}" for i in range(batch)]
    names += ["head"] if batch >= 0 else []
    names += [] if by == "head" else [by]
    levels = np.indices(shape).reshape(len(shape), math.prod(shape))
    if not names:  # one head without an axis
        names, levels = ["head"], np.zeros((1, 1), np.int64)
    if len(names) == 1:
        index = pandas.Index(levels[0], name=names[0])
    else:
        index = pandas.MultiIndex.from_arrays(list(levels), names=names)
    return pandas.DataFrame({name: each.flatten() for name, each in columns.items()}, index=index)


def _of_heads(columns: dict[str, Array]) -> dict[str, Array]:
    """Average fields of queries over the queries that see a key, if a field identifies these."""
    telling = [
        columns[name] for name in ("effective_count", "max", "top_k_mass") if name in columns
    ]
    means = dict(columns)
    for name, field in columns.items():
        if name not in OF_HEADS:
            seen = np.broadcast_to(telling[0] != 0 if telling else np.True_, field.shape)
            means[name] = mean_over_queries(np.where(seen, field, 0), seen.sum(axis=-1))
    return means


def _ends(columns: Mapping[str, Array], name: str, starts: ArrayLike) -> list[int]:
    """Return the checked starts of the packed sequences of some fields."""
    rows = {field: array.shape for field, array in columns.items() if field not in OF_HEADS}
    shapes = rows or {field: array.shape for field, array in columns.items()}
    first, shape = next(iter(shapes.items()))
    wrong = [field for field, each in shapes.items() if len(each) != 2 or each != shape]
    if wrong:
        raise ValueError(
            f"summary must have fields of one shape, (total, heads), with {name}, got "
            + " and ".join(f"{field} of shape {shapes[field]}" for field in {first, wrong[0]})
        )
    numbers = np.asarray(starts)
    last = shape[0] if rows else int(numbers.flat[-1]) if numbers.size else 0
    try:
        counts = token_counts(starts, first, last)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("starts", name, 1)) from None
    return [0, *counts.cumsum().tolist()]
