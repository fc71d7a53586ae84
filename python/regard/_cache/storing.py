"""The cache methods that store keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard._arguments.keywords import refuses_unknown
from regard._cache import append
from regard._cache.opened import opened_layer, opened_state, writable_layer
from regard._cache.stored import stored_tokens

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard._cache.layer import Layer

    Array = NDArray[Any]


class Storing:
    """A cache of one layer."""

    _layer: Layer

    def __len__(self) -> int:
        """Return the number of tokens that the longest entry has seen."""
        return opened_state(self._layer).longest

    @property
    def keys(self) -> Array:
        """A copy of the keys, shape (batch, kv_heads, len(cache), head_dim).

        The copy has the storage type, or float32 if it has fewer than 16 bits. Keys beyond an
        entry's length and evicted keys are 0.
        """
        return stored_tokens(opened_layer(self, "keys"), "key")

    @property
    def values(self) -> Array:
        """A copy of the values, shape (batch, kv_heads, len(cache), value_dim), as for `keys`."""
        return stored_tokens(opened_layer(self, "values"), "value")

    @refuses_unknown
    def append(self, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None) -> None:
        """Append the keys and values of new tokens.

        Parameters
        ----------
        key : array_like, shape (batch, kv_heads, new, head_dim)
            Any floating-point type, converted to the cache's type. With a batch of 1, the batch
            axis may be omitted.
        value : array_like, shape (batch, kv_heads, new, value_dim)
            As for `key`.
        lengths : array_like of int, shape (batch,), optional
            Number of real new tokens in each entry. The tokens after them are padding and are not
            stored. All tokens are real by default.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If shapes disagree, `lengths` are out of range, the capacity is exceeded, a number
            cannot be stored in fewer than 16 bits, or the cache is closed or read-only.
        MemoryError, OSError
            If there is no room to grow in memory or on the disk. OSError also if another program
            has truncated the file.
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
        append.append(writable_layer(self, "append"), key, value, lengths)

    @refuses_unknown
    def append_ragged(self, key: ArrayLike, value: ArrayLike, starts: ArrayLike) -> None:
        """Append the keys and values of new tokens, any number of them for each entry, packed.

        Parameters
        ----------
        key : array_like, shape (tokens, kv_heads, head_dim)
            The new tokens of all entries, one entry after another, of any floating-point type.
        value : array_like, shape (tokens, kv_heads, value_dim)
            As for `key`.
        starts : array_like of int, shape (batch + 1,)
            Where each entry's tokens start, followed by the total number of tokens. The tokens
            ``key[starts[b]:starts[b + 1]]`` are appended to entry ``b``, and may be empty.

        Raises
        ------
        TypeError, ValueError, MemoryError, OSError, FloatingPointError
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
        append.append_ragged(writable_layer(self, "append_ragged"), key, value, starts)
