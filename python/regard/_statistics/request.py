"""Requests for statistics of attention weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import as_lse, as_stored_arrays, shown
from regard._arguments.keywords import check_options
from regard._arguments.numbers import count, iterated, listed
from regard._arguments.options import WeightOptions, names_of
from regard._statistics.result import OF_HEADS, OF_KEYS, OF_QUERIES, TopKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

# The results of the compiled module, in order.
_RESULTS = (*OF_QUERIES, *OF_HEADS, "top_k", *OF_KEYS)
DEFAULT_STATISTICS = tuple(name for name in _RESULTS if name not in ("induction", "top_k"))


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
