"""The cache that callers see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from regard._arguments.keywords import translates_keywords
from regard._arguments.numbers import file_path
from regard._cache import arguments, file
from regard._cache.content import Content
from regard._cache.geometry import Geometry, stored_type
from regard._cache.memory_room import MemoryRoom
from regard._cache.pool import Pool
from regard._cache.quantise import quantised
from regard._cache.rows import Layout
from regard._cache.state import State
from regard._cache.view import CacheView, opened_content

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike

    Path = str | os.PathLike[str]


class KVCache(CacheView):
    """Keys and values of the tokens so far, to which new queries attend.

    A layer that generates text appends the keys and values of its new tokens and attends with their
    queries; nothing that was computed before is computed or copied again::

        cache.append(key, value)
        output = cache.attend(query)

    Positions are absolute: the first token of a batch entry stands at 0, and the next at
    ``cache.lengths``, whatever has been evicted meanwhile.

    Parameters
    ----------
    batch, kv_heads, head_dim : int
        Sizes of the keys.
    value_dim : int, optional
        Size of the values; `head_dim` when not given.
    capacity : int, optional
        The most tokens that an entry may have; appending more is an error. Without `page_size`,
        each entry has one page of this size from the beginning, so that its tokens lie side by
        side. With a window, texts of any length fit, and the limit is on one append: as many tokens
        as there is room for, or ``capacity - sink_tokens - window`` (at least 1) at any time.
    dtype : dtype, default float32
        What keys and values are stored as: float16, bfloat16 (of the package ml_dtypes, or its
        name), float32, float64, or int8, which is a quarter of float32: see the notes. Results
        have the result type of the query and of this, and of the query alone with int8.
    window : int, optional
        Every query sees this many of the last tokens, its own included, as with the option
        ``window=(window - 1, 0)`` of `scaled_dot_product_attention`. Pages of tokens that no coming
        query sees are evicted and used again.
    sink_tokens : int, default 0
        With a window, this many of the first tokens are kept and seen too (Xiao et al. 2024,
        "Efficient Streaming Language Models with Attention Sinks").
    page_size : int, optional
        How many tokens a page holds, a multiple of 16. Memory is taken page by page, and each entry
        has a table of its pages: growing copies nothing, `reorder` and `fork` share pages, so that
        there is one copy of a prompt that many texts begin with. 192 when not given, or fewer with
        a small window, or all of `capacity`.
    path : path-like, optional
        A file to make and to keep everything in: it is mapped into memory, may be larger than
        memory, and can be opened again with `KVCache.open`.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or `dtype` cannot be stored.
    ValueError
        If a size is out of range, or `path` is empty or has a null character.
    FileExistsError
        If there is a file at `path` already.
    OSError
        If the file cannot be made, or the disk is full.
    MemoryError
        If there is no memory for `capacity`, or no array can have such sizes.

    See Also
    --------
    scaled_dot_product_attention : what `attend` calls, with every option.
    merge_attention_states : joins results over a shared prompt with those over its continuations.

    Notes
    -----
    Results have the bits of `scaled_dot_product_attention` with the same keys, stored as `dtype`,
    for any page size, in memory or in a file. With a window, they are those of the option
    ``window=(window - 1, 0)``, and with sink tokens those of a bool mask that shows the same keys.

    A window's memory is bounded: each entry has pages for the sink tokens, the window and two
    appends, one after the other, and at most two pages more (three with sink tokens that do not
    fill a page). Pages are used again and not given back, so the largest two appends count. The
    last append can always be undone with `truncate`.

    With int8, each key and value is a row of integers from -127 to 127 and a scale, which is the
    largest of its numbers divided by 127, but never below 2**-126: rows of less than about 1.5e-36
    lose digits. Keys are rotated first, and queries with them: no product changes, and single large
    channels are spread over all. Integers are multiplied by scales after the products: results are
    exact for the rounded numbers that are stored, up to rounding in the query's precision.

    Infinity and NaN cannot be stored as int8, and are stored in the other types as they are. A
    finite number that is too large for a floating-point type, such as 1e6 for float16, becomes
    infinite. `append` then warns or raises an error, as `numpy.errstate` says of overflows.

    A call that raises an error or is interrupted by a signal leaves the cache as it was before the
    call or, if the change was already complete, as it is after it. Calls that change a cache must
    not run at the same time as other calls on it. Forks of it may be used in other threads. In the
    child of ``os.fork()``, a cache in a file may only be read, and its forks grow in memory.

    The data is written to a file before the lengths, and nothing that the file still needs is
    overwritten: if the process dies, the file has the content from before or after the call (and
    if it dies while it makes the file, the file cannot be opened). `flush` protects against a power
    failure what is not changed after it. One process at a time may write to a file, or many may
    read it. A file grows by a quarter and never shrinks: pages that are given back are used again,
    forks of its cache take theirs from it too while it is open, and pages without an owner are free
    once it is closed.

    The lock keeps out other caches, but not programs that do not ask for it. If another program
    truncates the file, its keys and values are lost, and calls raise OSError; if it does so during
    a call, the system ends the process (SIGBUS). If another program writes to the file, results may
    be wrong. To replace a file that is in use, rename another one to its name: caches that are open
    keep the old one.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> cache = regard.KVCache(batch=1, kv_heads=2, head_dim=64)
    >>> for new in (5, 1, 1):  # a prompt, then token by token
    ...     key, value = rng.standard_normal((2, 1, 2, new, 64), dtype=np.float32)
    ...     cache.append(key, value)
    ...     output = cache.attend(rng.standard_normal((1, 8, new, 64), dtype=np.float32))
    >>> cache.lengths
    array([7])
    >>> output.shape
    (1, 8, 1, 64)

    The last 4 tokens and the first, in memory that does not grow:

    >>> cache = regard.KVCache(1, 2, 64, window=4, sink_tokens=1)
    >>> for _ in range(1000):
    ...     cache.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> len(cache), cache.nbytes < 64 * 2 * 2 * 64 * 4
    (1000, True)

    A prompt that is held once, and two texts that begin with it:

    >>> prompt = regard.KVCache(1, 2, 64, page_size=16, dtype="int8")
    >>> prompt.append(*rng.standard_normal((2, 2, 100, 64)))
    >>> texts = [prompt.fork(), prompt.fork()]
    >>> for text in texts:
    ...     text.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> prompt.lengths, texts[0].lengths
    (array([100]), array([101]))
    """

    @translates_keywords
    def __init__(
        self,
        batch: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        dtype: DTypeLike = np.float32,
        window: int | None = None,
        sink_tokens: int = 0,
        page_size: int | None = None,
        path: Path | None = None,
    ) -> None:
        entries = arguments.size("batch", batch, minimum=1, maximum=2**31 - 1)
        shown, sinks = arguments.window_size(window, sink_tokens)
        room = None if capacity is None else arguments.size("capacity", capacity)
        if room is not None and shown is not None and room <= sinks + shown:
            raise ValueError(
                f"capacity must be at least {sinks + shown + 1}, sink_tokens + window + 1, got "
                f"{room}"
            )
        heads = arguments.size("kv_heads", kv_heads, minimum=1)
        dim = arguments.size("head_dim", head_dim, minimum=1)
        geometry = Geometry(
            heads,
            dim,
            dim if value_dim is None else arguments.size("value_dim", value_dim, minimum=1),
            stored_type(dtype),
            shown,
            sinks,
            room,
            arguments.size_of_pages(page_size, room, shown),
        )
        # A page an entry of a fixed capacity, so that a lack of memory shows now.
        has_fixed_room = room is not None and page_size is None and shown is None
        reserved = entries if has_fixed_room else 0
        if path is not None:
            self._content = file.create(file_path(path), geometry, entries, reserved)
        else:
            pool = Pool(geometry, MemoryRoom(Layout.of(geometry), 0))
            pool.reserve(reserved)
            self._content = Content(pool, State.empty(entries))

    @classmethod
    def open(cls, path: Path, mode: Literal["r", "r+"] = "r+") -> Self:
        """Open the file of a cache that was made with `path`.

        Parameters
        ----------
        path : path-like
            The file.
        mode : {"r+", "r"}
            To read and change it, or only to read it.

        Returns
        -------
        KVCache
            With everything that the file holds.

        Raises
        ------
        ValueError
            If the file is not that of a cache, has another version, is truncated or damaged; the
            message says which. If `mode` is unknown.
        BlockingIOError
            If the file is open elsewhere: one may write, or many read.
        OSError
            If the file cannot be opened.
        """
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', got {mode!r}")
        return cls._of(file.opened(file_path(path), is_writable=mode == "r+"))

    @classmethod
    def _of(cls, content: Content) -> Self:
        cache = cls.__new__(cls)
        cache._content = content
        return cache

    def append(self, key: ArrayLike, value: ArrayLike, lengths: ArrayLike | None = None) -> None:
        """Append new tokens.

        Parameters
        ----------
        key : array_like, shape (batch, kv_heads, new, head_dim)
            Of any floating-point type, converted to the cache's. A batch of 1 needs no axis.
        value : array_like, shape (batch, kv_heads, new, value_dim)
            As `key`.
        lengths : array_like of int, shape (batch,), optional
            How many of the new tokens are real in each entry: those after them are padding and
            not stored. All when not given.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If shapes disagree, `lengths` are out of range, the capacity is exceeded, a number that
            is to be stored as int8 is not finite, or the cache is closed or was opened for reading.
        MemoryError, OSError
            If there is no room to grow in memory or on the disk; OSError also if another program
            has truncated the file.
        FloatingPointError
            Instead of the warning, if ``numpy.errstate(over="raise")`` asks for it. Nothing is
            appended then.

        Warns
        -----
        RuntimeWarning
            If a finite number becomes infinite in the cache's type, unless `numpy.errstate` says
            otherwise.

        Examples
        --------
        Two prompts of 3 and 2 tokens, padded on the right: their queries begin where the cache
        ended before, which `attend` must be told.

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
        content = writable_content(self, "append")
        if lengths is None and content.append_plain(key, value):
            return
        geometry, state = content.geometry, content.state
        assert state is not None
        keys, values = arguments.new_tokens(geometry, state.batch, key, value)
        counts = arguments.new_lengths(state.batch, lengths, keys.shape[2])
        if not (counts if isinstance(counts, int) else counts.any()):
            return
        if geometry.capacity is not None:
            each = np.broadcast_to(counts, state.batch)
            geometry.check_append(each, state.lengths + each)
        if geometry.is_quantised:
            rows = quantised(keys, values, counts)
        else:
            rows = [
                arguments.as_stored(name, array, geometry.dtype, counts)
                for name, array in (("key", keys), ("value", values))
            ]
        if not content.append(rows, counts):
            rows = [
                arguments.converted(name, array, geometry.dtype, counts)
                for name, array in zip(("key", "value"), rows, strict=True)
            ]
            content.append(rows, counts)

    def truncate(self, length: ArrayLike) -> None:
        """Forget the last tokens.

        Parameters
        ----------
        length : int or array_like of int, shape (batch,)
            How many of the first tokens stay: of every entry that is longer, or of each entry.

        Raises
        ------
        TypeError
            If `length` is not of integers.
        ValueError
            If `length` is negative or beyond what there is; if the window of the last token that
            would stay has been evicted (the last append can always be undone); if the cache is
            closed or was opened for reading.
        """
        content = writable_content(self, "truncate")
        if not content.truncate_alike(length):
            content.truncate(arguments.shorter_lengths(length, self.lengths))

    def reorder(self, batch_indices: ArrayLike) -> None:
        """Replace the entries, as when beams are chosen or texts join and leave a batch.

        Parameters
        ----------
        batch_indices : array_like of int
            Entry ``i`` becomes what entry ``batch_indices[i]`` was, or an empty one for -1. Indices
            may repeat or be missing, and their number is the new size of the batch. Entries share
            pages, and nothing is copied.

        Raises
        ------
        TypeError
            If `batch_indices` are not integers.
        ValueError
            If one is out of range; if the cache is closed or was opened for reading.
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

        The first text leaves the batch, and another one joins it:

        >>> cache.reorder([1, 2, -1])
        >>> cache.lengths
        array([3, 3, 0])
        """
        content = writable_content(self, "reorder")
        content.reorder(arguments.entries(batch_indices, len(self.lengths)))

    def fork(self) -> Self:
        """Return a second cache with the same content, to continue it in another way.

        Both share pages. Only the last one is copied, where it is not full, when one of the two is
        appended to. Forks of a cache in a file share its pages until it is closed: what they append
        goes to the file too, or to memory if the file was opened for reading.

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
        content = opened_content(self, "fork").fork()
        return self._of(content)

    def flush(self) -> None:
        """Wait until a file's content is on the disk."""
        opened_content(self, "flush").flush()

    def close(self) -> None:
        """Unlock the file, if there is one, and free the memory. A closed cache cannot be used.

        Forks of a cache in a file get a copy of what they hold, in memory.

        Raises
        ------
        MemoryError, OSError
            If there is no memory for the forks of a file, or another program has truncated it; the
            cache is still open then.
        """
        self._content.close()

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
        """Refuse to copy, which would share keys and values without saying so."""
        raise TypeError("a KVCache is copied with fork(), and kept with path=")


def writable_content(cache: KVCache, method: str) -> Content:
    """Return what a cache holds, or raise an error if it may not be changed."""
    content = opened_content(cache, method)
    if not content.is_writable:
        raise ValueError(
            "the cache may only be read: it was opened with mode='r', or in the process that this "
            "one was forked from"
        )
    return content
