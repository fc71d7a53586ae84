"""The cache that callers see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from regard._cache import arguments
from regard._cache.content import Content
from regard._cache.geometry import Geometry, stored_type
from regard._cache.paged import PagedContent
from regard._cache.readable import Readable
from regard._cache.slots import MemorySlots

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike

    Path = str | os.PathLike[str]


class KVCache(Readable):
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
        How many tokens there is room for, from the beginning; appending beyond is an error. With a
        window, ``capacity - sink_tokens - window`` (at least 1) new tokens can be appended at once.
        Without, room grows by doubling: a token is copied about once on the average, up to half of
        the room is unused, and while it grows the old room stays beside the new one.
    dtype : dtype, default float32
        What keys and values are stored as: float16, bfloat16 (of the package ml_dtypes, or its
        name), float32, float64, or int8, which is a quarter of float32: see the notes. Results
        have the result type of the query and of this, and of the query alone with int8.
    window : int, optional
        Every query sees this many of the last tokens, its own among them, as with the option
        ``window=(window - 1, 0)`` of `scaled_dot_product_attention`; what no coming query sees is
        overwritten. Memory stays at ``sink_tokens + window`` tokens and the longest append of late.
    sink_tokens : int, default 0
        With a window, this many of the first tokens are kept and seen too (Xiao et al. 2024,
        "Efficient Streaming Language Models with Attention Sinks").
    page_size : int, optional
        A multiple of 16: memory is taken in pages of so many tokens, of which each entry has a
        table. Growing copies nothing, `reorder` and `fork` share pages, and `truncate` gives them
        back: of a prompt that many texts begin with, there is one copy. Without a window only. A
        capacity is a limit then, and takes nothing beforehand.
    path : path-like, optional
        A file to make and to keep everything in: it is mapped into memory, may be larger than
        memory, and can be opened again with `KVCache.open`. With `page_size` it grows at its end;
        without, a larger file takes its place.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or `dtype` is none that can be stored.
    ValueError
        If a size is out of range, or `page_size` is given with a window.
    FileExistsError
        If there is a file at `path`.
    OSError
        If the file cannot be made, or the disk is full.
    MemoryError
        If there is no memory for `capacity`, or sizes that no array can have.

    See Also
    --------
    scaled_dot_product_attention : what `attend` calls, with every option.
    merge_attention_states : joins a cache of a shared prompt with those of its continuations.

    Notes
    -----
    Without a window, results have the bits of `scaled_dot_product_attention` with the same keys,
    stored as `dtype`. With one, the ring of slots is attended to in up to three parts, which are
    joined as by `merge_attention_states`: results are equal up to rounding, and how they round
    depends on where the ring stands.

    In pages or not, results have the same bits. With int8, each key and value is a row of integers
    from -127 to 127 and a scale, the largest of its numbers through 127, but never below 2**-126:
    rows of less than about 1.5e-36 lose digits. Keys are rotated before, and queries with them: no
    product changes, and single large channels are spread over all. Integers are multiplied by
    scales behind the products: results are those for the numbers that this stands for, up to
    rounding in the query's precision. What is not finite cannot be stored.

    A call that raises leaves the cache as it was. Calls that change a cache must not run beside
    others on it.

    In a file, lengths are written after the data that they speak of, and what cannot change at
    once is written beside what it replaces: a process that dies leaves the content before or after
    the call (and if it dies while it makes the file, one that cannot be opened). Against a power
    failure, `flush`: what has not been changed since is safe. One process at a time may write to a
    file, or many read it. A file without pages is copied when it grows or is reordered, and the
    disk must hold both then. One with pages grows by a quarter, and never gets smaller: pages that
    are given back are used again, forks of its cache take theirs there too while it is open, and
    what has no owner when it is closed is free.

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
    >>> cache
    KVCache(batch=1, kv_heads=2, head_dim=64, value_dim=64, dtype=float32, lengths=[7])
    >>> output.shape
    (1, 8, 1, 64)

    The last 4 tokens and the first, in memory that does not grow:

    >>> cache = regard.KVCache(1, 2, 64, window=4, sink_tokens=1)
    >>> for _ in range(1000):
    ...     cache.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> len(cache), cache.nbytes
    (1000, 6144)

    A prompt that is held once, and two texts that begin with it:

    >>> prompt = regard.KVCache(1, 2, 64, page_size=16, dtype="int8")
    >>> prompt.append(*rng.standard_normal((2, 2, 100, 64)))
    >>> texts = [prompt.fork(), prompt.fork()]
    >>> for text in texts:
    ...     text.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> prompt.lengths, texts[0].lengths
    (array([100]), array([101]))
    """

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
        size, sinks = arguments.window_size(window, sink_tokens)
        room = None if capacity is None else arguments.size("capacity", capacity)
        if room is not None and size is not None and room <= sinks + size:
            raise ValueError(
                f"capacity must be at least {sinks + size + 1}, sink_tokens + window + 1, got "
                f"{room}"
            )
        dim = arguments.size("head_dim", head_dim, minimum=1)
        geometry = Geometry(
            # Their lengths are an array of 64-bit integers.
            arguments.size("batch", batch, minimum=1, maximum=2**60 - 1),
            arguments.size("kv_heads", kv_heads, minimum=1),
            dim,
            dim if value_dim is None else arguments.size("value_dim", value_dim, minimum=1),
            stored_type(dtype),
            size,
            sinks,
            room,
            arguments.size_of_pages(page_size, size),
        )
        self._content: Content | PagedContent | None
        if path is not None:
            from regard._cache import file

            self._content = file.create(os.fsdecode(path), geometry)
        elif geometry.page_size is not None:
            self._content = PagedContent.in_memory(geometry)
        else:
            self._content = Content.empty(geometry, MemorySlots(geometry, room or 0))

    @classmethod
    def open(cls, path: Path, mode: Literal["r", "r+"] = "r+") -> Self:
        """Open the file of a cache that was made with `path`.

        Parameters
        ----------
        path : path-like
            The file.
        mode : {"r+", "r"}
            To read and append, or to read alone.

        Returns
        -------
        KVCache
            With everything as it was.

        Raises
        ------
        ValueError
            If the file is none of a cache, of another version, truncated or damaged; the message
            says which. If `mode` is unknown.
        BlockingIOError
            If the file is open elsewhere: one may write, or many read.
        OSError
            If the file cannot be opened.
        """
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', got {mode!r}")
        from regard._cache import file

        return cls._of(file.opened(os.fsdecode(path), is_writable=mode == "r+"))

    @classmethod
    def _of(cls, content: Content | PagedContent) -> Self:
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
            How many of the new tokens are real in each entry: those behind them are padding and
            not stored. All when not given.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        ValueError
            If shapes disagree, `lengths` are beyond what was given, the capacity is exceeded, a
            number is not finite that is to be stored as int8, or the cache is closed or was opened
            for reading.
        MemoryError, OSError
            If there is no room to grow in memory or on the disk.

        Examples
        --------
        Two prompts of 3 and 2 tokens, padded on the right: their queries begin where the cache
        ended before, which `attend` must be told, as it cannot see the padding.

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
        content = self._writable()
        keys, values = arguments.new_tokens(content.geometry, key, value)
        counts = arguments.new_lengths(content.geometry, lengths, keys.shape[2])
        if counts.any():
            content.append(keys, values, counts)

    def truncate(self, length: ArrayLike) -> None:
        """Forget the last tokens; the room stays.

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
        content = self._writable()
        content.truncate(arguments.shorter_lengths(length, content.lengths))

    def reorder(self, batch_indices: ArrayLike) -> None:
        """Make each entry a copy of another, as beams are chosen.

        Parameters
        ----------
        batch_indices : array_like of int
            Entry ``i`` becomes what entry ``batch_indices[i]`` was. Indices may repeat, and the
            cache's batch becomes as many as there are. What is kept is copied to new room, unless
            nothing changes; pages are shared instead.

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
        """
        content = self._writable()
        content.reorder(arguments.entries(batch_indices, content.geometry.batch))

    def fork(self) -> Self:
        """Return a second cache with the same content, to continue it in another way.

        Nothing is copied until one of the two is appended to or reordered; the one that is copies
        then. The fork of a cache in a file is in memory as soon as one of the two is written to.
        Of a cache in pages, only the last page is copied, where it is not full; forks of one in a
        file share its pages until it is closed, or until one of them is appended to if the file was
        opened for reading.

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
        return self._of(self._opened().fork())

    def flush(self) -> None:
        """Wait until a file's content is on the disk."""
        self._opened().flush()

    def close(self) -> None:
        """Unlock the file, if there is one, and free the memory. A closed cache cannot be used.

        Forks of a cache in a file stay as they are, in memory.

        Raises
        ------
        MemoryError
            If there is no memory for the forks of a file; the cache is open still.
        """
        if self._content is not None:
            self._content.close()
            self._content = None

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
        """Refuse copies that would share keys and values unawares."""
        raise TypeError("a KVCache is copied with fork(), and kept with path=")

    def _writable(self) -> Content | PagedContent:
        content = self._opened()
        if not content.is_writable:
            raise ValueError(
                "the cache may only be read: it was opened with mode='r', or in the process that "
                "this one was forked from"
            )
        return content
