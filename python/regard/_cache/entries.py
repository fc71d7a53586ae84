"""The cache methods that add, remove and reorder entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from regard._arguments.numbers import file_path
from regard._cache import arguments, preempt
from regard._cache.content import first_of_last_append
from regard._cache.opened import opened_content, opened_state, writable_content
from regard._cache.opening import Opening

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike

    from regard._cache.content import Content


class Entries(Opening):
    """A cache of several texts."""

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
            closed or read-only.
        """
        content = writable_content(self, "truncate")
        if not content.truncate_alike(length):
            lengths = opened_state(content).all_lengths()
            content.truncate(arguments.shorter_lengths(length, lengths))

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
            If an index is out of range; if the cache is closed or read-only.
        MemoryError, OSError
            If there is no room in memory or on the disk.

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
        content = writable_content(self, "reorder")
        content.reorder(arguments.entries(batch_indices, opened_state(content).batch))

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
            If an entry does not exist; if the cache is closed or read-only.
        OSError
            If there is no room on the disk.

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
        content = writable_content(self, "drop")
        content.reorder(arguments.left_entries(entries, opened_state(content).batch))

    def adopt(self, other: Self, entry: SupportsIndex = 0) -> int:
        """Move an entry of another cache here, for example a prompt that was processed separately.

        Parameters
        ----------
        other : KVCache or KVCaches
            A cache that shares this cache's pages: its fork, such as ``cache.fork([-1])``, which
            begins with one empty entry. It loses the entry.
        entry : int, default 0
            Number of the entry in `other`.

        Returns
        -------
        int
            Number of the entry in this cache, where it is the last. Keys and values are not copied.

        Raises
        ------
        TypeError
            If `other` is not a cache, or `entry` is not an integer.
        ValueError
            If `other` is this cache, does not share its pages, or has no such entry; if a cache is
            closed or read-only.
        OSError
            If there is no room on the disk.

        Notes
        -----
        An interruption leaves the entry in `other`, in both caches, or in this one.

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
        content, others = writable_content(self, "adopt"), _content_of("other", other, type(self))
        if others is content:
            raise ValueError("other must be another cache, got the cache itself")
        if others.pool is not content.pool:
            raise ValueError(
                "other must share the pages of this cache: create it with fork(), or with "
                "fork([-1]) for an empty cache"
            )
        state = others.state
        assert state is not None
        return content.adopt(others, arguments.entry_number("entry", entry, state.batch))

    def preempt(self, entry: SupportsIndex, path: str | os.PathLike[str]) -> None:
        """Move an entry to a file, so that other texts can use its pages.

        Parameters
        ----------
        entry : int
            Number of the entry. Later entries move up, as with `drop`.
        path : path-like
            File to create, from which `resume` brings the entry back with the same bits. It is a
            cache of one entry, which `KVCache.open` can open too.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If there is no such entry; if the cache is closed or read-only.
        FileExistsError
            If `path` already exists.
        OSError
            If the file cannot be written. The cache does not change.

        Notes
        -----
        An interruption leaves the entry in the cache, or in both the cache and the file.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import regard
        >>> cache = regard.KVCache(2, 1, 4)
        >>> cache.append_ragged(*np.ones((2, 5, 1, 4)), starts=[0, 2, 5])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache.preempt(0, Path(folder) / "waiting")
        ...     alone = cache.lengths
        ...     number = cache.resume(Path(folder) / "waiting")
        >>> alone, number, cache.lengths
        (array([3]), 1, array([3, 2]))
        """
        content = writable_content(self, "preempt")
        number = arguments.entry_number("entry", entry, opened_state(content).batch)
        preempt.preempt(content, number, file_path(path))

    def resume(self, path: str | os.PathLike[str]) -> int:
        """Bring an entry back from the file of `preempt`, which is then removed.

        Parameters
        ----------
        path : path-like
            File of a cache with the same sizes, type and limits.

        Returns
        -------
        int
            Number of the entry, which is the last.

        Raises
        ------
        TypeError
            If `path` has the wrong type.
        ValueError
            If the file is not a cache file, is damaged, does not contain exactly one entry, or
            belongs to a cache with other options; if this cache is closed or read-only.
        MemoryError, OSError
            If there is no room, or the file cannot be read or removed.

        Notes
        -----
        An interruption leaves the entry in the file, or in both the file and the cache.
        """
        return preempt.resume(writable_content(self, "resume"), file_path(path))

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
            last append; if the cache is closed or read-only.
        MemoryError, OSError
            If there is no room for a copy of the kept tokens.

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
        content = writable_content(self, "keep")
        state = opened_state(content)
        number = arguments.entry_number("entry", entry, state.batch)
        start, length = first_of_last_append(state, number), int(state.all_lengths()[number])
        content.keep(number, arguments.kept_positions(positions, start, length))

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
        caches is appended to. Forks of a cache in a file share its pages until it is closed. Their
        new tokens are stored in the file too, or in memory if the file was opened for reading.

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
        content = opened_content(self, "fork")
        chosen = None
        if batch_indices is not None:
            chosen = arguments.entries(batch_indices, opened_state(content).batch)
        return self._of(content.fork(chosen))


def _content_of(name: str, cache: Any, kind: type[Entries]) -> Content:
    """Return the content of a cache that is an argument, and may be changed."""
    if not isinstance(cache, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {type(cache).__name__}")
    return writable_content(cache, name)
