"""Summaries of attention as pandas tables and as dictionaries."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import choice, listed, token_counts
from regard._runtime.optional import needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from regard._statistics.request import AttentionSummary

    Array = NDArray[Any]

# The fields that describe queries, keys and heads; top_k describes queries too.
OF_QUERIES = (
    "entropy",
    "max",
    "effective_count",
    "mean_distance",
    "first_mass",
    "local_mass",
)
OF_KEYS = ("column_sums", "column_means")
OF_HEADS = ("previous_token", "induction")


def average_over_queries(picked: Array, queries: Array) -> Array:
    """Return each head's mean over the given number of queries, or NaN for 0 queries."""
    rows = np.ascontiguousarray(picked)  # the memory order affects the last bit of the sum
    sums = np.asarray(rows.sum(axis=-1, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / queries).astype(picked.dtype)


def dict_of(summary: AttentionSummary) -> dict[str, Array]:
    """Return the fields that are not None, with the keys and weights of `top_k` as two entries."""
    found: dict[str, Any] = {k: v for k, v in summary._asdict().items() if v is not None}
    if summary.top_k is not None:
        del found["top_k"]
        found["top_k_keys"], found["top_k_weights"] = summary.top_k
    return found


def frame_of(
    summary: AttentionSummary,
    by: str,
    query_starts: ArrayLike | None,
    key_starts: ArrayLike | None,
) -> Any:
    """Return a summary as a table with a row for each head, query or key."""
    by = choice("by", by, ("head", "query", "key"))
    is_packed = query_starts is not None or key_starts is not None
    columns = _columns(summary, by)
    if not columns:
        raise ValueError(
            f"summary must have a field for a table by={by!r}, got {listed(dict_of(summary))}"
        )
    pandas = needed("pandas", "AttentionSummary.to_frame", "pandas")
    if is_packed:
        name, starts = ("key_starts", key_starts) if by == "key" else ("query_starts", query_starts)
        if starts is None:
            raise ValueError(f"{name} must be passed for a table by={by!r} of packed sequences")
        levels, columns = _of_sequences(columns, by, name, starts)
    else:
        lead = _lead_of(summary)
        if by == "head":
            columns = _of_heads(columns)
        levels = _levels(lead, by, next(iter(columns.values())).shape)
    flat = {name: np.asarray(array).reshape(-1) for name, array in columns.items()}
    if len(levels) == 1:
        ((name, numbers),) = levels.items()
        index = pandas.Index(numbers, name=name)
    else:
        index = pandas.MultiIndex.from_arrays(list(levels.values()), names=list(levels))
    return pandas.DataFrame(flat, index=index)


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
        found["top_k_mass"] = weights.sum(axis=-1)
        return found | of_heads
    for i in range(keys.shape[-1]):
        found |= {f"top_key_{i}": keys[..., i], f"top_weight_{i}": weights[..., i]}
    return found


def _of_heads(columns: dict[str, Array]) -> dict[str, Array]:
    """Average fields of queries over the queries that see a key, if a field identifies these."""
    telling = [
        columns[name] for name in ("effective_count", "max", "top_k_mass") if name in columns
    ]
    means = dict(columns)
    for name, field in columns.items():
        if name in OF_HEADS:
            continue
        seen = np.broadcast_to(telling[0] != 0 if telling else np.True_, field.shape)
        means[name] = average_over_queries(np.where(seen, field, 0), seen.sum(axis=-1))
    return means


def _lead_of(summary: AttentionSummary) -> tuple[int, ...]:
    """Return the axes (..., heads) of a summary, or raise ValueError if two fields differ."""
    leads = {
        name: array.shape[: array.ndim - _own_axes(name)]
        for name, array in dict_of(summary).items()
    }
    first = next(iter(leads))
    for name, lead in leads.items():
        if lead != leads[first]:
            raise ValueError(
                f"summary must have the same axes (..., heads) in all fields, got {leads[first]} "
                f"in {first} and {lead} in {name}: pass query_starts= and key_starts= for a "
                "summary of summarize_attention_ragged, where heads come last"
            )
    return leads[first]


def _own_axes(name: str) -> int:
    """Return the number of axes of a field after heads."""
    return 2 if name.startswith("top_k") else 0 if name in OF_HEADS else 1


def _levels(lead: tuple[int, ...], by: str, shape: tuple[int, ...]) -> dict[str, Array]:
    """Return the numbers of an index's rows, level by level."""
    names = [f"batch{i}" for i in range(len(lead) - 1)] + ["head"] * bool(lead)
    if len(lead) == 2:
        names[0] = "layer"
    if by != "head":
        names.append(by)
    if not names:  # one head without an axis
        return {"head": np.zeros(1, np.int64)}
    numbers = np.indices(shape).reshape(len(shape), math.prod(shape))
    return dict(zip(names, numbers, strict=True))


def _of_sequences(
    columns: dict[str, Array], by: str, name: str, starts: ArrayLike
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the levels and the columns of packed sequences, whose fields have heads last."""
    rows = {field: array.shape for field, array in columns.items() if field not in OF_HEADS}
    shapes = rows or {field: array.shape for field, array in columns.items()}
    first, shape = next(iter(shapes.items()))
    wrong = [field for field, each in shapes.items() if len(each) != 2 or each != shape]
    if wrong:
        raise ValueError(
            f"summary must have fields of one shape, (total, heads), with {name}, got "
            + " and ".join(f"{field} of shape {shapes[field]}" for field in {first, wrong[0]})
        )
    ends = _ends(name, starts, shape[0] if rows else None, first)
    if by == "head":
        of_heads = {field: array for field, array in columns.items() if field in OF_HEADS}
        pieces = [
            _of_heads({field: columns[field][slice(*part)].T for field in rows})
            for part in pairwise(ends)
        ]
        means = {
            field: np.array([piece[field] for piece in pieces], columns[field].dtype)
            for field in rows
        }
        sequence, head = np.indices((len(ends) - 1, shape[1]))
        return {"sequence": sequence.reshape(-1), "head": head.reshape(-1)}, means | of_heads
    parts = [np.indices((shape[1], end - start)) for start, end in pairwise(ends)]
    levels = {
        "sequence": _joined([np.full(part[0].size, i) for i, part in enumerate(parts)]),
        "head": _joined([part[0].reshape(-1) for part in parts]),
        by: _joined([part[1].reshape(-1) for part in parts]),
    }
    flat = {
        field: _joined([array[slice(*part)].T.reshape(-1) for part in pairwise(ends)], array.dtype)
        for field, array in columns.items()
    }
    return levels, flat


def _ends(name: str, starts: ArrayLike, total: int | None, field: str) -> list[int]:
    """Return checked starts as a list, or raise TypeError or ValueError."""
    numbers = np.asarray(starts)
    last = total if total is not None else int(numbers.flat[-1]) if numbers.size else 0
    try:
        counts = token_counts(starts, field, last)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("starts", name, 1)) from None
    return [0, *counts.cumsum().tolist()]


def _joined(parts: Sequence[Array], dtype: Any = np.int64) -> Array:
    return np.concatenate([np.empty(0, dtype), *parts])
