"""The cache methods that add, remove and reorder entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import count, flag
from regard._cache import arguments
from regard._cache.file import SavedCache
from regard._cache.geometry import Geometry
from regard._cache.remove import remove

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from numpy.typing import ArrayLike


class Entries(SavedCache):
    """A cache of several texts."""

    def _create(
        self, layers: int | None, batch: Any, *sizes: Any, max_bytes: Any, **options: Any
    ) -> None:
        """Check the arguments of a constructor; `layers` is None for a cache of one layer."""
        entries = count("batch", batch, maximum=2**31 - 1)
        geometry = Geometry.of(layers, *sizes, **options)
        limit = None if max_bytes is None else count("max_bytes", max_bytes, minimum=1)
        is_reserved = options["capacity"] is not None and options["page_size"] is None
        self._set(geometry.new_pages(entries, limit, is_reserved=is_reserved), geometry)

    def truncate(self, length: ArrayLike) -> None:
        """Remove the last tokens.

        Parameters
        ----------
        length : int or array_like of int, shape (batch,)
            Number of first tokens to keep, scalar (shorter entries do not change) or one per entry.

        Raises
        ------
        TypeError
            If `length` does not consist of integers.
        ValueError
            If `length` is negative or exceeds the current length; if the window of the last
            remaining token has been evicted (the last append can always be undone); if the cache is
            closed.
        """
        if type(length) is not int:
            length = arguments.shorter_lengths(length, self._pages.lengths)
        self._pages.truncate(length)

    def reorder(self, batch_indices: ArrayLike) -> None:
        """Select entries, as in beam search or when texts join and leave a batch.

        Parameters
        ----------
        batch_indices : array_like of int
            Entry ``i`` becomes the previous entry ``batch_indices[i]``, or an empty entry for -1.
            Indices may be repeated or missing, and their number is the new batch size. Entries
            share pages, and nothing is copied.

        Raises
        ------
        TypeError
            If `batch_indices` are not integers.
        ValueError
            If an index is out of range; if the cache is closed.
        MemoryError
            If memory does not suffice.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(2, 1, 4)
        >>> cache.append(np.ones((2, 1, 3, 4)), np.ones((2, 1, 3, 4)), lengths=[3, 1])
        >>> cache.reorder([1, 0, 0])
        >>> cache.lengths
        array([1, 3, 3])

        The first text leaves the batch, and another text joins it:

        >>> cache.reorder([1, 2, -1])
        >>> cache.lengths
        array([3, 3, 0])
        """
        self._pages.reorder(arguments.entries(batch_indices, self.batch))

    def drop(self, entries: ArrayLike) -> None:
        """Remove entries, whose texts have ended. The others keep their order.

        Parameters
        ----------
        entries : int or array_like of int
            Numbers of the entries to remove. A cache may have no entries afterward.

        Raises
        ------
        TypeError
            If `entries` are not integers.
        ValueError
            If an entry does not exist; if the cache is closed.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(3, 1, 4)
        >>> cache.append_ragged(*np.ones((2, 6, 1, 4)), starts=[0, 1, 3, 6])
        >>> cache.drop(1)
        >>> cache.lengths
        array([1, 3])
        """
        dropped = arguments.existing_entries(entries, self.batch)
        self._pages.reorder(np.delete(np.arange(self.batch), dropped))

    def adopt(self, other: Self, entry: SupportsIndex = 0) -> int:
        """Move an entry of another cache here, for example a prompt that was processed separately.

        Parameters
        ----------
        other : KVCache or KVCaches
            A cache with the same sizes, types and limits, which loses the entry. If it shares this
            cache's pages, nothing is copied: a fork does, such as ``cache.fork([-1])``, which
            begins with one empty entry. Otherwise, for a cache from a file, pages are copied.
        entry : int, default 0
            Number of the entry in `other`.

        Returns
        -------
        int
            Number of the entry in this cache, where it is the last.

        Raises
        ------
        TypeError
            If `other` is not a cache, or `entry` is not an integer.
        ValueError
            If `other` is this cache, has other sizes, or has no such entry; if a cache is closed.
        MemoryError
            If memory does not suffice for a copy.

        See Also
        --------
        save : saves entries, such as texts that wait until other texts have ended.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> texts = regard.KVCache(0, 1, 4)
        >>> prompt = texts.fork([-1])
        >>> prompt.append(*np.ones((2, 1, 1, 3, 4)))
        >>> texts.adopt(prompt)
        0
        >>> texts.lengths, prompt.lengths
        (array([3]), array([], dtype=int64))
        """
        if not isinstance(other, type(self)):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if other is self:
            raise ValueError("other must be another cache, got the cache itself")
        if not self._pages.shares_pages(other._pages):
            _check_alike(self._geometry, other._geometry)
        number = arguments.entry_number("entry", entry, other.batch)
        return self._pages.adopt(other._pages, number)

    def keep(self, entry: SupportsIndex, positions: ArrayLike) -> None:
        """Keep some tokens of the last append, such as the accepted nodes of a tree.

        Parameters
        ----------
        entry : int
            Number of the entry.
        positions : array_like of int
            Positions of the tokens to keep, increasing, from the length of the entry before the
            last append on. They become consecutive, and the other tokens are removed.

        Raises
        ------
        TypeError
            If an argument does not consist of integers.
        ValueError
            If there is no such entry; if `positions` do not increase, or were not appended by the
            last append; if the cache is closed.
        MemoryError
            If memory does not suffice for a copy of the kept tokens.

        See Also
        --------
        regard.masks.tree : shows each node of a tree the nodes on its path.

        Examples
        --------
        A draft of 4 tokens, of which the first and the third are accepted:

        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(1, 1, 4)
        >>> cache.append(*np.ones((2, 1, 10, 4)))
        >>> cache.append(*np.arange(32.0).reshape(2, 1, 4, 4))
        >>> cache.keep(0, [10, 12])
        >>> cache.lengths, cache.keys[0, 0, 10:, 0]
        (array([12]), array([0., 8.], dtype=float32))
        """
        lengths = self._pages.lengths
        number = arguments.entry_number("entry", entry, len(lengths))
        start, length = self._pages.length_before(number), int(lengths[number])
        self._pages.keep(number, arguments.kept_positions(positions, start, length))

    @refuses_unknown
    def remove(
        self,
        entry: SupportsIndex,
        start: SupportsIndex,
        stop: SupportsIndex,
        *,
        inverse_frequencies: ArrayLike | Sequence[ArrayLike | None] | None = None,
        interleaved: bool = False,
    ) -> None:
        """Remove tokens from the middle of a text, and move the later tokens to their positions.

        Engines call this a context shift: a text that has become too long continues without a part
        of it, and its beginning and its end are not computed again. The later keys and values have
        seen the removed tokens, so that a model does not compute the same numbers from the shorter
        text.

        Parameters
        ----------
        entry : int
            Number of the entry.
        start, stop : int
            Positions of the first removed token and of the first token that follows. The token at
            `stop` moves to `start`, and so on.
        inverse_frequencies : array_like of float, shape (pairs,), optional
            For rotary keys, the angle by which each pair of columns turns from one position to the
            next: the frequencies that `regard.positional.rotary_frequencies` returns. The moved
            keys are rotated back by ``stop - start`` positions. With several layers, also a list
            with an array, or None, for each layer. By default, the stored bits of keys do not
            change.
        interleaved : bool, default False
            Which columns form a pair, as in `regard.positional.rotary`.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If the entry does not exist; unless ``0 <= start <= stop <= lengths[entry]``; if evicted
            tokens would move, or be in the window of a moved token; if a rotated key cannot be
            stored in fewer than 16 bits; if the cache is closed, or another thread changes it.
        MemoryError
            If memory does not suffice for a copy of the moved tokens.

        See Also
        --------
        truncate : removes the last tokens.

        Notes
        -----
        Afterward, `keep` needs a new append. ALiBi slopes, distance biases, windows and causality
        depend on positions in the cache, so they follow the new positions. Keys that contain an
        absolute encoding keep the encoding of their previous position.

        A rotation is computed in float32 (float64 for float64) and stored again, which rounds keys
        of narrower types a second time. Scalings of rotary embeddings need nothing more: an
        attention factor is part of the stored keys and does not change. The frequencies must be
        those of all moved keys. If keys were rotated by different frequencies, as ``dynamic`` and
        ``longrope`` scaling do when a text exceeds the trained length, the text must be computed
        again. With ``value_from_key=True``, columns from `value_dim` on are rotated, since values
        are not.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(1, 1, 4)
        >>> cache.append(*np.arange(40.0).reshape(1, 1, 10, 4)[None].repeat(2, axis=0))
        >>> cache.remove(0, start=1, stop=8)
        >>> cache.keys[0, 0, :, 0]
        array([ 0., 32., 36.], dtype=float32)
        """
        number = arguments.entry_number("entry", entry, self.batch)
        length = int(self._pages.lengths[number])
        end = count("stop", stop, maximum=length)
        begin = count("start", start, maximum=end)
        turns = flag("interleaved", interleaved)
        remove(self._pages, self._geometry, number, begin, end, inverse_frequencies, turns)

    def fork(self, batch_indices: ArrayLike | None = None) -> Self:
        """Return a second cache with the same content, which can be continued independently.

        Parameters
        ----------
        batch_indices : array_like of int, optional
            Entries of the fork, -1 for an empty entry, as for `reorder`. All entries by default.

        Returns
        -------
        KVCache or KVCaches
            A cache that shares pages with this one.

        Raises
        ------
        TypeError
            If `batch_indices` are not integers.
        ValueError
            If an index is out of range; if the cache is closed.

        Notes
        -----
        The two caches share pages. Only the last page is copied, if it is not full, when one of the
        caches is appended to.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(1, 1, 4)
        >>> cache.append(np.ones((1, 3, 4)), np.ones((1, 3, 4)))
        >>> other = cache.fork()
        >>> other.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
        >>> len(cache), len(other)
        (3, 4)
        """
        chosen = np.arange(self.batch)
        if batch_indices is not None:
            chosen = arguments.entries(batch_indices, self.batch)
        return self._of_pages(self._pages.fork(chosen), self._geometry)

    @property
    def nbytes(self) -> int:
        """Number of bytes of the used pages, scales included, and of the page table.

        A page counts from its first use on, even after it has been given back and waits for reuse.
        All caches that share pages count them in full.
        """
        return self._pages.nbytes

    def close(self) -> None:
        """Give the pages back. A closed cache cannot be used."""
        self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Refuse to copy, because a copy would silently share keys and values."""
        raise TypeError(f"a {type(self).__name__} is copied with fork(), and kept with save()")


def _check_alike(own: Geometry, theirs: Geometry) -> None:
    """Raise ValueError unless two caches have the same sizes, types and limits."""
    if len(own.layers) != len(theirs.layers):
        raise ValueError(
            f"the other cache must have {len(own.layers)} layers, got {len(theirs.layers)}"
        )
    pairs: list[tuple[str, Any, Any]] = [("capacity", own.capacity, theirs.capacity)]
    for layer, other in zip(own.layers, theirs.layers, strict=True):
        pairs += zip(layer._fields, layer, other, strict=True)
    for name, value, wrong in pairs:
        if value != wrong:
            raise ValueError(
                f"the other cache must have {name} {value!s:.80}, got {wrong!s:.80}; a fork() has "
                "the same"
            )
