"""What can be asked of a cache, whoever fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, overload

from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import ATTENTION, refuse_keywords
from regard._cache import attend, explain
from regard._cache.stored import stored_tokens
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from regard._arguments.options import CacheOptions
    from regard._attention.explanation import Explanation
    from regard._cache.content import Content
    from regard._cache.state import State

    Array = NDArray[Any]

# What to say of keywords that `attend` does not have, because a cache knows them.
_APPENDED = "leave it out, and append it first: cache.append(key, value)"
_LENGTHS = "leave it out: the cache knows its lengths"
_PADDING = "leave it out: pad on the right, and append with lengths="
_OF_THE_CACHE = {
    **dict.fromkeys(("key", "value", "k", "v"), _APPENDED),
    **dict.fromkeys(("key_lengths", "cache_seqlens"), _LENGTHS),
    **dict.fromkeys(("left_padding", "cache_leftpad"), _PADDING),
    "causal": "leave it out: attention to a cache is causal unless is_causal=False",
    "precision": "leave it out: scores are computed in the precision of queries and keys",
}


# More are not read by anybody, in one line.
_MOST_LENGTHS = 16


class CacheView(ShowsOptions):
    """A cache as queries see it."""

    _content: Content

    def __len__(self) -> int:
        """Return how many tokens the longest entry has seen."""
        return opened_state(self).longest

    def _shown_options(self) -> dict[str, str] | str:
        geometry, state = self._content.geometry, self._content.state
        if state is None:
            return "closed"
        shown = {"batch": state.batch}
        shown |= {name: getattr(geometry, name) for name in ("kv_heads", "head_dim", "value_dim")}
        limits = {}
        if geometry.capacity is not None:
            limits["capacity"] = f"{geometry.capacity}"
        if geometry.window is not None:
            limits["window"] = f"{geometry.window}"
            limits["sink_tokens"] = f"{geometry.sink_tokens}"
        lengths = state.all_lengths()
        more = f" and {len(lengths) - _MOST_LENGTHS} more" if len(lengths) > _MOST_LENGTHS else ""
        return {
            **{name: f"{number}" for name, number in shown.items()},
            "dtype": geometry.dtype.name,
            **limits,
            "page_size": f"{geometry.page_size}",
            "lengths": f"{lengths[:_MOST_LENGTHS].tolist()}{more}",
        }

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each entry has seen, the position of its next one: a copy."""
        return opened_state(self).all_lengths()

    @property
    def batch(self) -> int:
        """How many batch entries there are."""
        return opened_state(self).batch

    @property
    def kv_heads(self) -> int:
        """How many heads keys and values have."""
        return self._content.geometry.kv_heads

    @property
    def head_dim(self) -> int:
        """Size of the keys."""
        return self._content.geometry.head_dim

    @property
    def value_dim(self) -> int:
        """Size of the values."""
        return self._content.geometry.value_dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """What keys and values are stored as."""
        return self._content.geometry.dtype

    @property
    def capacity(self) -> int | None:
        """The most tokens that an entry may have, or None."""
        return self._content.geometry.capacity

    @property
    def window(self) -> int | None:
        """How many of the last tokens a query sees, or None for all."""
        return self._content.geometry.window

    @property
    def sink_tokens(self) -> int:
        """With a window, how many of the first tokens are seen too."""
        return self._content.geometry.sink_tokens

    @property
    def page_size(self) -> int:
        """How many tokens a page holds."""
        return self._content.geometry.page_size

    @property
    def keys(self) -> Array:
        """The keys, shape (batch, kv_heads, len(cache), head_dim): a copy.

        They have the type that they are stored as, or float32 where that is int8. What lies beyond
        an entry's length is 0, and so is what a window has evicted.
        """
        return stored_tokens(opened_content(self, "keys"), "key")

    @property
    def values(self) -> Array:
        """The values, shape (batch, kv_heads, len(cache), value_dim): a copy, as `keys`."""
        return stored_tokens(opened_content(self, "values"), "value")

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that have been used, scales included, and of the table of pages.

        A page counts from its first use on, also when it has been given back and waits to be used
        again. Caches that share pages each count all of them.
        """
        return opened_content(self, "nbytes").nbytes

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
        """Attend to what has been appended, without copying it.

        Parameters
        ----------
        query : array_like, shape (batch, heads, q_len, head_dim)
            ``heads`` is a multiple of ``kv_heads``. A batch of 1 needs no axis, and then the
            results have none.
        mask : array_like of bool or float, optional
            As for `scaled_dot_product_attention`, with a column for every position from 0 to
            ``len(cache)``, evicted ones included.
        is_causal : bool, default True
            Whether a query sees nothing after its own position.
        query_offset : int or array_like of int, optional
            Position of the first query: one for all entries, or one each. ``cache.lengths - q_len``
            when not given: the queries are those of the last tokens. It must be given for more
            queries than the cache has tokens, if attention is causal, and after an append with
            unequal `lengths` that gave an entry fewer tokens than there are queries: the lengths
            before that append.
        window : (left, right), optional
            Narrows what is seen, sink tokens included.
        scale, softcap, alibi_slopes, sinks, return_weights, return_lse, out, threads
            As for `scaled_dot_product_attention`. Weights have a column for every position, 0 for
            evicted ones.

        Returns
        -------
        output : ndarray, shape (batch, heads, q_len, value_dim)
            0 where a query sees nothing, as in an entry without tokens.
        weights : ndarray, shape (batch, heads, q_len, len(cache))
            If `return_weights`.
        lse : ndarray, shape (batch, heads, q_len)
            If `return_lse`; -inf where a query sees nothing.

        Raises
        ------
        TypeError
            If an argument has the wrong type, or there is no such argument.
        ValueError
            If shapes disagree or a number is out of range; if nothing has been appended yet; if
            `query_offset` is needed and not given; if a query would see tokens that have been
            evicted since it was appended; if the cache is closed.
        OSError
            If another program has truncated the cache's file.
        """
        options = {
            "is_causal": is_causal,
            "query_offset": query_offset,
            "window": window,
            "scale": scale,
            "softcap": softcap,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
            "return_weights": return_weights,
            "return_lse": return_lse,
            "out": out,
            "threads": threads,
        }
        if others:
            _refuse("KVCache.attend", others, options)
        if mask is not None:
            warn_if_zero_one(mask)
        result: Array | tuple[Array, Array] | tuple[Array, Array, Array] = attend.attend(
            opened_content(self, "attend"), query, mask, options
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
        **others: Any,
    ) -> Explanation:
        """Say what `attend` would compute with these arguments, and how.

        Parameters
        ----------
        query, mask, is_causal, query_offset, window, scale, softcap, alibi_slopes, sinks, threads
            As for `attend`.

        Returns
        -------
        Explanation
            As `regard.explain` gives.

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
        options = {
            "is_causal": is_causal,
            "query_offset": query_offset,
            "window": window,
            "scale": scale,
            "softcap": softcap,
            "alibi_slopes": alibi_slopes,
            "sinks": sinks,
            "threads": threads,
        }
        if others:
            _refuse("KVCache.explain", others, options)
        return explain.explain(opened_content(self, "explain"), query, mask, options)


def _refuse(call: str, unknown: Iterable[str], options: Iterable[str]) -> NoReturn:
    """Raise the TypeError for keywords that `attend` and `explain` do not have."""
    refuse_keywords(call, unknown, ("query", "mask", *options), _OF_THE_CACHE, kind=ATTENTION)


def opened_content(cache: CacheView, method: str) -> Content:
    """Return what a cache holds, or raise an error where it is closed or is not one."""
    if not isinstance(cache, CacheView):
        raise TypeError(f"{method} must be called on a KVCache, got {type(cache).__name__}")
    content = cache._content
    if content.state is None:
        raise ValueError("the cache is closed")
    return content


def opened_state(cache: CacheView) -> State:
    """Return the state of a cache, or raise ValueError where it is closed."""
    state = cache._content.state
    if state is None:
        raise ValueError("the cache is closed")
    return state
