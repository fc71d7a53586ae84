"""One layer of a cache, to which a layer of a model appends and attends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, Unpack, overload

from regard import _core
from regard._arguments.keywords import refuses_unknown
from regard._arguments.options import (
    CacheExplainOptions,
    CacheOptions,
    ResultOptions,
    takes_options,
)
from regard._cache.append import append, append_ragged
from regard._cache.attend import attend, explain
from regard._cache.quantize import stored_tokens
from regard._cache.sizes import Sizes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from regard._attention.explanation import Explanation
    from regard._cache.geometry import Geometry, LayerGeometry

    Array = NDArray[Any]

    class _Output(CacheOptions, total=False):
        return_weights: Literal[False]
        return_lse: Literal[False]

    class _WithWeights(CacheOptions, total=False):
        return_weights: Required[Literal[True]]
        return_lse: Literal[False]

    class _WithLse(CacheOptions, total=False):
        return_weights: Literal[False]
        return_lse: Required[Literal[True]]

    class _WithBoth(CacheOptions, total=False):
        return_weights: Required[Literal[True]]
        return_lse: Required[Literal[True]]


class Layer(Sizes):
    """The methods of a cache that append and attend."""

    def _set_layer(self, pages: _core.PageTable, geometry: Geometry, number: int) -> None:
        self._pages, self._geometry, self._number = pages, geometry, number
        self._layer, self._sizes = pages.layer(number), geometry.layers[number]
        self._is_plain = not self._sizes.dtype.is_quantized

    @property
    def _shown(self) -> tuple[LayerGeometry, ...]:
        return (self._sizes,)

    def _joined(self, arrays: list[Array | None]) -> Any:
        return arrays[0]

    def __len__(self) -> int:
        """Return the number of tokens that the longest entry has seen."""
        return self._layer.longest

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens seen by each entry, which is the position of its next token (a copy)."""
        return self._layer.lengths

    @property
    def keys(self) -> Array:
        """A copy of the keys, shape (batch, kv_heads, len(cache), head_dim).

        The copy has the storage type, or float32 if it has fewer than 16 bits. Keys beyond an
        entry's length and evicted keys are 0.
        """
        return stored_tokens(self._layer, self._sizes, 0)

    @property
    def values(self) -> Array:
        """A copy of the values, shape (batch, kv_heads, len(cache), value_dim), as for `keys`."""
        return stored_tokens(self._layer, self._sizes, 1)

    @refuses_unknown
    def append(
        self,
        key: ArrayLike,
        value: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
    ) -> None:
        """Append the keys and values of new tokens.

        Parameters
        ----------
        key : array_like, shape (batch, kv_heads, new, head_dim)
            Any floating-point type, converted to the cache's type. With a batch of 1, the batch
            axis may be omitted.
        value : array_like, shape (batch, kv_heads, new, value_dim)
            As for `key`. It must be omitted if the cache has ``value_from_key=True``.
        lengths : array_like of int, shape (batch,), optional
            Number of real new tokens in each entry. The tokens after them are padding and are not
            stored. All tokens are real by default.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If shapes disagree, `lengths` are out of range, the capacity is exceeded, a number
            cannot be stored in fewer than 16 bits, or the cache is closed.
        MemoryError
            If memory does not suffice.
        FloatingPointError
            Raised instead of the warning with ``numpy.errstate(over="raise")``. Nothing is
            appended.

        Warns
        -----
        RuntimeWarning
            If a finite number becomes infinite in the cache's type, unless `numpy.errstate` is set
            otherwise.

        Examples
        --------
        Two prompts of 3 and 2 tokens, padded on the right. The position of their first queries,
        which is the length of the cache before the append, must be passed to `attend`:

        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(2, 1, 4)
        >>> tokens = np.ones((2, 1, 3, 4))
        >>> offset = cache.lengths
        >>> cache.append(tokens, tokens, lengths=[3, 2])
        >>> cache.attend(tokens, query_offset=offset).shape
        (2, 1, 3, 4)
        >>> cache.lengths
        array([3, 2])
        """
        is_quick = lengths is None and self._is_plain
        if not (is_quick and _core.append_rows(self._layer, key, value, None, None, None, False)):
            append(self._layer, self._sizes, key, value, lengths)

    @refuses_unknown
    def append_ragged(self, key: ArrayLike, value: ArrayLike | None, starts: ArrayLike) -> None:
        """Append the keys and values of new tokens, any number of them for each entry, packed.

        Parameters
        ----------
        key : array_like, shape (tokens, kv_heads, head_dim)
            The new tokens of all entries, one entry after another, of any floating-point type.
        value : array_like, shape (tokens, kv_heads, value_dim)
            As for `key`. None if the cache has ``value_from_key=True``.
        starts : array_like of int, shape (batch + 1,)
            Where each entry's tokens start, followed by the total number of tokens. The tokens
            ``key[starts[b]:starts[b + 1]]`` are appended to entry ``b``, and may be empty.

        Raises
        ------
        TypeError, ValueError, MemoryError, FloatingPointError
            As for `append`; ValueError also if `starts` do not begin with 0, decrease, or do not
            end with the number of tokens.

        Warns
        -----
        RuntimeWarning
            As for `append`.

        See Also
        --------
        attend_ragged : attends with the queries of these tokens.

        Examples
        --------
        A prompt of 5 tokens joins a text that grows by one:

        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(2, 1, 4)
        >>> cache.append_ragged(*np.ones((2, 3, 1, 4)), starts=[0, 3, 3])
        >>> starts = [0, 1, 6]
        >>> cache.append_ragged(*np.ones((2, 6, 1, 4)), starts)
        >>> cache.lengths
        array([4, 5])
        >>> cache.attend_ragged(np.ones((6, 2, 4)), starts).shape
        (6, 2, 4)
        """
        is_quick = starts is not None and self._is_plain
        if not (is_quick and _core.append_rows(self._layer, key, value, None, None, starts, True)):
            append_ragged(self._layer, self._sizes, key, value, starts)

    @overload
    def attend(
        self, query: ArrayLike, mask: ArrayLike | None = None, **options: Unpack[_Output]
    ) -> Array: ...
    @overload
    def attend(
        self, query: ArrayLike, mask: ArrayLike | None = None, **options: Unpack[_WithWeights]
    ) -> tuple[Array, Array]: ...
    @overload
    def attend(
        self, query: ArrayLike, mask: ArrayLike | None = None, **options: Unpack[_WithLse]
    ) -> tuple[Array, Array]: ...
    @overload
    def attend(
        self, query: ArrayLike, mask: ArrayLike | None = None, **options: Unpack[_WithBoth]
    ) -> tuple[Array, Array, Array]: ...
    @takes_options(CacheOptions, ResultOptions, is_causal=True, query_offset=None)
    def attend(self, query: ArrayLike, mask: ArrayLike | None = None, **options: Any) -> Any:
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
        """
        if mask is None and not options:
            result = _core.attention_cached(query, None, self._layer, None, options)
            if result is not NotImplemented:
                return result
        return attend(self._layer, self._sizes, "attend", query, None, mask, options)

    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Unpack[_Output],
    ) -> Array: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Unpack[_WithWeights],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Unpack[_WithLse],
    ) -> tuple[Array, Array]: ...
    @overload
    def attend_ragged(
        self,
        query: ArrayLike,
        starts: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Unpack[_WithBoth],
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
    ) -> Any:
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
        TypeError, ValueError
            As for `attend`; ValueError also if `starts` do not begin with 0, decrease, or do not
            end with the number of queries.
        """
        if starts is None:
            raise TypeError("starts must be an array of integers, got None")
        return attend(self._layer, self._sizes, "attend_ragged", query, starts, mask, options)

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
        given: dict[str, Any] = {**options}
        return explain(self._layer, self._sizes, query, starts, mask, given)
