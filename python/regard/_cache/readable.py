"""What can be asked of a cache, whoever fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from regard._cache import arguments, attend, explain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.content import Content
    from regard._cache.paged import PagedContent
    from regard._explanation import Explanation
    from regard._options import CacheOptions

    Array = NDArray[Any]

# Arguments of `scaled_dot_product_attention` that `attend` does not have.
_NO_ARGUMENTS = {
    "key_lengths": "the cache knows its lengths",
    "precision": "scores are computed in the precision of queries and keys",
}


class Readable:
    """A cache as queries see it."""

    _content: Content | PagedContent | None

    def __len__(self) -> int:
        """Return how many tokens the longest entry has seen."""
        return self._opened().longest

    def __repr__(self) -> str:
        if self._content is None:
            return f"{type(self).__name__}(closed)"
        g = self._content.geometry
        sizes = "" if g.page_size is None else f", page_size={g.page_size}"
        sizes += "" if g.window is None else f", window={g.window}, sink_tokens={g.sink_tokens}"
        return (
            f"{type(self).__name__}(batch={g.batch}, kv_heads={g.kv_heads}, "
            f"head_dim={g.head_dim}, value_dim={g.value_dim}, dtype={g.dtype.name}{sizes}, "
            f"lengths={self._content.lengths.tolist()})"
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each entry has seen, the position of its next one: a copy."""
        return self._opened().lengths.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of the room for keys and values, used or not; forks count what they share.

        Scales and tables are counted too. Pages count from their first use on, also when
        they have been given back and wait to be used again.
        """
        return self._opened().nbytes

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
    def attend(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        is_causal: bool = True,
        query_offset: ArrayLike | None = None,
        window: tuple[int | None, int | None] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        alibi_slopes: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
        out: Array | None = None,
        threads: int | None = None,
        **others: Any,
    ) -> Array | tuple[Array, Array] | tuple[Array, Array, Array]:
        """Attend to what has been appended, without a copy of it.

        Parameters
        ----------
        query : array_like, shape (batch, heads, q_len, head_dim)
            ``heads`` is a multiple of ``kv_heads``. A batch of 1 needs no axis, and then the
            results have none.
        mask : array_like of bool or float, optional
            As that of `scaled_dot_product_attention`, with a column for every position from 0 to
            ``len(cache)``, evicted ones included.
        is_causal : bool, default True
            Whether a query sees nothing behind its own position.
        query_offset : int or array_like of int, optional
            Position of the first query, one or one for each entry. ``cache.lengths - q_len`` when
            not given: the queries are those of the last tokens.
        window : (left, right), optional
            Narrows what is seen, sink tokens included.
        scale, softcap, alibi_slopes, sinks, return_weights, return_lse, out, threads
            As for `scaled_dot_product_attention`. Weights have a column for every position, and
            cannot be had from a cache with a window.

        Returns
        -------
        output : ndarray, shape (batch, heads, q_len, value_dim)
            0 where a query sees nothing, as in an empty cache.
        weights : ndarray, shape (batch, heads, q_len, len(cache))
            If `return_weights`.
        lse : ndarray, shape (batch, heads, q_len)
            If `return_lse`; -inf where a query sees nothing.

        Raises
        ------
        TypeError
            If an argument has the wrong type, or there is no such argument.
        ValueError
            If shapes disagree, a number is out of range, a query should see tokens that have been
            evicted since it was appended, or the cache is closed.
        """
        for name in others:
            reason = _NO_ARGUMENTS.get(name, "see its documentation for those it has")
            raise TypeError(f"attend() has no argument {name}: {reason}")
        content = self._opened()
        result: Array | tuple[Array, Array] | tuple[Array, Array, Array] = attend.attend(
            content,
            arguments.fitting_query(content.geometry, query),
            mask,
            is_causal=is_causal,
            query_offset=query_offset,
            window=window,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            return_weights=return_weights,
            return_lse=return_lse,
            out=out,
            threads=threads,
        )
        return result

    def explain(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        is_causal: bool = True,
        query_offset: ArrayLike | None = None,
        window: tuple[int | None, int | None] | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        alibi_slopes: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        threads: int | None = None,
    ) -> Explanation:
        """Say what `attend` would compute with these arguments, and how.

        Parameters
        ----------
        query, mask, is_causal, query_offset, window, scale, softcap, alibi_slopes, sinks, threads
            As for `attend`.

        Returns
        -------
        Explanation
            As `regard.explain` gives. Where a cache with a window is attended to in parts, sums of
            all, and sizes of the longest one.

        Raises
        ------
        TypeError, ValueError
            As `attend`.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(1, 2, 64, dtype=np.float16)
        >>> cache.append(*np.zeros((2, 2, 1000, 64), np.float32))
        >>> cache.explain(np.zeros((8, 1, 64), np.float32)).kernel
        'decode'
        """
        content = self._opened()
        return explain.explain(
            content,
            arguments.fitting_query(content.geometry, query),
            mask,
            is_causal=is_causal,
            query_offset=query_offset,
            window=window,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sinks=sinks,
            threads=threads,
        )

    def _opened(self) -> Content | PagedContent:
        if self._content is None:
            raise ValueError("the cache is closed")
        return self._content
