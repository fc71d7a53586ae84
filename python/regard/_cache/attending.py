"""The cache methods that attend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import check_options
from regard._arguments.options import (
    CacheExplainOptions,
    CacheOptions,
    ResultOptions,
    names_of,
    takes_options,
)
from regard._cache import attend, explain
from regard._cache.opened import opened_layer

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._attention.explanation import Explanation

    Array = NDArray[Any]


_APPENDED = "leave it out, and append it first: cache.append(key, value)"
# Advice for keywords that are not options because the cache determines their values.
_OF_THE_CACHE = {
    **dict.fromkeys(("key", "value", "k", "v"), _APPENDED),
    "causal": "leave it out: attention to a cache is causal unless is_causal=False",
}
_OPTIONS = frozenset(names_of(CacheOptions, ResultOptions))


class Attending:
    """A cache to which queries attend."""

    @overload
    def attend(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[False] = False,
        return_lse: Literal[False] = False,
        **options: Unpack[CacheOptions],
    ) -> Array: ...
    @overload
    def attend(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[True],
        return_lse: Literal[False] = False,
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[False] = False,
        return_lse: Literal[True],
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[True],
        return_lse: Literal[True],
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array, Array]: ...
    @takes_options(CacheOptions, ResultOptions, is_causal=True, query_offset=None)
    def attend(
        self, query: ArrayLike, mask: ArrayLike | None = None, **options: Any
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """Attend to the appended tokens without copying them.

        Parameters
        ----------
        query : array_like, shape (batch, heads, q_len, head_dim)
            ``heads`` is a multiple of ``kv_heads``. With a batch of 1, the batch axis may be
            omitted, and is then absent from the results.
        mask : array_like of bool or float, SparseMask, or a pair (bool, float), optional
            As for `scaled_dot_product_attention`, with a column for each of the ``len(cache)``
            positions, evicted positions included. For queries that are the nodes of a tree, see
            `regard.masks.tree`.
        is_causal : bool, default True
            Whether a query sees only keys up to its own position.
        query_offset : int or array_like of int, optional
            Position of the first query, scalar or one per entry. The default is
            ``cache.lengths - q_len``: the queries belong to the last tokens. It is required if
            attention is causal and there are more queries than tokens in the cache. It is also
            required after an append with unequal `lengths` that gave an entry fewer tokens than
            there are queries: pass the lengths before that append.
        window : (left, right), optional
            Narrows the visible keys, including the first tokens.
        {options}

        Returns
        -------
        output : ndarray, shape (batch, heads, q_len, value_dim)
            0 for a fully masked row, as in an entry without tokens.
        weights : ndarray, shape (batch, heads, q_len, len(cache))
            Returned if `return_weights`.
        lse : ndarray, shape (batch, heads, q_len)
            Returned if `return_lse`; -inf for a fully masked row.

        Raises
        ------
        TypeError
            If an argument has the wrong type or is unknown.
        ValueError
            If shapes disagree or a number is out of range; if nothing has been appended yet; if
            `query_offset` is required and missing; if a query would see tokens that have been
            evicted since its own token was appended; if the cache is closed.
        OSError
            If another program has truncated the cache's file.
        """
        return _attended(self, "attend", query, None, mask, options)

    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[False] = False,
        return_lse: Literal[False] = False,
        **options: Unpack[CacheOptions],
    ) -> Array: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[True],
        return_lse: Literal[False] = False,
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[False] = False,
        return_lse: Literal[True],
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        return_weights: Literal[True],
        return_lse: Literal[True],
        **options: Unpack[CacheOptions],
    ) -> tuple[Array, Array, Array]: ...
    @takes_options(
        CacheOptions,
        ResultOptions,
        is_causal=True,
        query_offset=None,
        reference="as for `attend`",
    )
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Any,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """Attend with any number of queries for each entry, packed.

        The results are bitwise identical to separate `attend` calls for each entry. Nothing is
        computed for padding, so that a prompt of 256 tokens and the single tokens of other texts
        can share a step. Entries without queries cost nothing. Threads divide the work, not the
        entries.

        Parameters
        ----------
        query : array_like, shape (tokens, heads, head_dim)
            The queries of all entries, one entry after another.
        starts : array_like of int, shape (batch + 1,)
            Where each entry's queries start, followed by the total number of queries, as for
            `append_ragged`.
        mask : array_like of bool or float, SparseMask, or a pair (bool, float), optional
            Broadcasts to ``(tokens, heads, len(cache))``; a SparseMask has the shape
            ``(heads, tokens, len(cache))``.
        query_offset : int or array_like of int, optional
            Position of the first query of each entry. By default, the queries belong to each
            entry's last tokens.
        {options}

        Returns
        -------
        output : ndarray, shape (tokens, heads, value_dim)
            0 for a fully masked row.
        weights : ndarray, shape (tokens, heads, len(cache))
            Returned if `return_weights`.
        lse : ndarray, shape (tokens, heads)
            Returned if `return_lse`; -inf for a fully masked row.

        Raises
        ------
        TypeError, ValueError, OSError
            As for `attend`; ValueError also if `starts` do not begin with 0, decrease, or do not
            end with the number of queries.
        """
        if starts is None:
            raise TypeError("starts must be an array of integers, got None")
        return _attended(self, "attend_ragged", query, starts, mask, options)

    @takes_options(
        CacheExplainOptions, is_causal=True, query_offset=None, reference="as for `attend`"
    )
    def explain(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        starts: ArrayLike | None = None,
        **options: Unpack[CacheExplainOptions],
    ) -> Explanation:
        """Report what `attend` would compute with these arguments, and how.

        Parameters
        ----------
        query, mask
            As for `attend`, or for `attend_ragged` with `starts`.
        starts : array_like of int, shape (batch + 1,), optional
            As for `attend_ragged`.
        {options}

        Returns
        -------
        Explanation
            As returned by `regard.explain`.

        Raises
        ------
        TypeError, ValueError
            As for `attend`.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(1, 2, 64, dtype=np.float16)
        >>> cache.append(*np.zeros((2, 2, 1000, 64), np.float32))
        >>> cache.explain(np.zeros((8, 1, 64), np.float32)).kernel
        'decode'
        """
        names = names_of(CacheExplainOptions)
        check_options("KVCache.explain", options, names, reasons=_OF_THE_CACHE)
        given: dict[str, Any] = {**options}
        return explain.explain(opened_layer(self, "explain"), query, starts, mask, given)


def _attended(
    cache: Attending, method: str, query: Any, starts: Any, mask: Any, options: dict[str, Any]
) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
    if not _OPTIONS.issuperset(options):
        check_options(f"KVCache.{method}", options, _OPTIONS, reasons=_OF_THE_CACHE)
    if mask is not None:
        warn_if_zero_one(mask)
    result: Array | tuple[Array, Array] | tuple[Array, Array, Array] = attend.attend(
        opened_layer(cache, method), query, starts, mask, options
    )
    return result
