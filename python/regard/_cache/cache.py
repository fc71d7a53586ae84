"""The public cache class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import MOST, choice, count, file_path
from regard._cache import append, arguments, file
from regard._cache.attending import Attending
from regard._cache.content import Content
from regard._cache.entries import Entries
from regard._cache.opened import opened_content, opened_state, writable_content
from regard._cache.storage.geometry import Geometry, stored_type
from regard._cache.storage.memory_room import MemoryRoom
from regard._cache.storage.pool import Pool
from regard._cache.storage.rows import PageLayout
from regard._cache.storage.state import State
from regard._cache.stored import stored_tokens
from regard._runtime.public import public
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Array = NDArray[Any]
    Path = str | os.PathLike[str]


# The maximum number of lengths in a representation, which is one line.
_MOST_LENGTHS = 16


@public
class KVCache(Attending, Entries, ShowsOptions):
    """Cache of the keys and values of past tokens, to which new queries attend.

    A layer that generates text appends the keys and values of its new tokens and attends with their
    queries. Earlier keys and values are neither computed again nor copied::

        cache.append(key, value)
        output = cache.attend(query)

    Positions are absolute: the first token of a batch entry is at position 0, and the next new
    token is at ``cache.lengths``, even after evictions.

    Parameters
    ----------
    batch, num_kv_heads, head_dim : int
        Sizes of the keys. `batch` may be 0: see `adopt`.
    value_dim : int, optional
        Size of the values; `head_dim` by default.
    capacity : int, optional
        Maximum number of tokens per entry; appending more is an error. Without `page_size`, each
        entry has one page of this size from the beginning, so that its tokens are contiguous. With
        `keep_last`, texts may have any length, and the limit applies to a single append: it may
        fill the remaining room or have ``capacity - keep_first - keep_last`` tokens (at least 1),
        whichever is more.
    dtype : dtype, default float32
        Storage type of keys and values: float16, bfloat16 (from the ml_dtypes package, or its
        name), float32, float64, or int8, which needs a quarter of the memory of float32 (see
        Notes). Results have the result type of the query and `dtype`, or of only the query with
        int8.
    keep_last : int, optional
        Number of last tokens that a query sees, its own token included, as with the option
        ``window=(keep_last - 1, 0)`` of `scaled_dot_product_attention`. Pages of tokens that no
        future query sees are evicted and reused.
    keep_first : int, default 0
        With `keep_last`, number of first tokens that are also kept and visible (Xiao et al. 2024,
        "Efficient Streaming Language Models with Attention Sinks").
    page_size : int, optional
        Number of tokens in a page, a multiple of 16. Memory is allocated page by page, and each
        entry has a table of its pages. Growing copies nothing, and `reorder` and `fork` share
        pages, so that a prompt that many texts begin with is stored once. The default is 192, or
        less with a small `keep_last`, or all of `capacity`.
    max_bytes : int, optional
        Budget of the pages of this cache and of the forks that share them. An append that needs
        more raises MemoryError, and nothing changes. Pages of texts that are dropped or truncated
        are reused. A file keeps no budget.
    path : path-like, optional
        File to create, which stores the whole cache. It is mapped into memory, may be larger than
        memory, and can be opened again with `KVCache.open`.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or `dtype` is not a storage type.
    ValueError
        If a size is out of range, or `path` is empty or contains a null character.
    FileExistsError
        If `path` already exists.
    OSError
        If the file cannot be created, or the disk is full.
    MemoryError
        If there is not enough memory for `capacity`, or no array can have these sizes.

    See Also
    --------
    scaled_dot_product_attention : attention without a cache, with every option.
    merge_attention_states : merges results over a shared prompt with results over continuations.

    Notes
    -----
    Results are bitwise identical to the results of `scaled_dot_product_attention` with the same
    keys, stored as `dtype`, for any page size, in memory or in a file. With `keep_last`, this holds
    for the option ``window=(keep_last - 1, 0)``, and with `keep_first` for a bool mask that shows
    the same keys.

    With `keep_last`, the memory is bounded: each entry has pages for the kept tokens and for two
    consecutive appends, and at most two more pages (three if the first tokens do not fill a page).
    Pages are reused and not given back, so the largest two appends count. The last append can
    always be undone with `truncate`.

    With int8, each key and value is a row of integers from -127 to 127 and a scale. The scale is
    the largest magnitude in the row divided by 127, but at least 2**-126: rows below about 1.5e-36
    lose digits. Keys are rotated first, and so are queries: dot products do not change, and single
    large channels are spread over all channels. The products of the integers are multiplied by the
    scales: results are exact for the stored, rounded numbers, up to rounding in the query's
    precision.

    Infinity and NaN cannot be stored as int8. The other types store them unchanged. A finite number
    that is too large for a floating-point type, such as 1e6 for float16, becomes infinite. `append`
    then warns or raises an error, according to the overflow setting of `numpy.errstate`.

    A call that raises an error or is interrupted by a signal leaves the cache as it was before the
    call or, if the change was already complete, as it is after the call. Calls that change a cache
    must not run at the same time as other calls on the same cache. Forks of the cache may be used
    in other threads. In the child of ``os.fork()``, a cache in a file is read-only, and its forks
    grow in memory.

    Data is written to a file before the lengths, and nothing that the file still needs is
    overwritten. If the process dies, the file has the content from before or after the call. If it
    dies while it creates the file, the file cannot be opened. `flush` protects all content that is
    not changed afterward against a power failure. One process at a time may write to a file, or
    many may read it. A file grows by a quarter and never shrinks. Pages that are given back are
    reused. Forks of the cache also allocate their pages in the file while it is open, and pages
    without an owner are free once the file is closed.

    The lock keeps out other caches, but not programs that ignore it. If another program truncates
    the file, its keys and values are lost, and calls raise OSError. If the file is truncated during
    a call, the system ends the process (SIGBUS). If another program writes to the file, results may
    be wrong. To replace a file that is in use, rename another file to its name: open caches keep
    the old file.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> cache = regard.KVCache(batch=1, num_kv_heads=2, head_dim=64)
    >>> for new in (5, 1, 1):  # a prompt, then token by token
    ...     key, value = rng.standard_normal((2, 1, 2, new, 64), dtype=np.float32)
    ...     cache.append(key, value)
    ...     output = cache.attend(rng.standard_normal((1, 8, new, 64), dtype=np.float32))
    >>> cache.lengths
    array([7])
    >>> output.shape
    (1, 8, 1, 64)

    The last 4 tokens and the first, in memory that does not grow:

    >>> cache = regard.KVCache(1, 2, 64, keep_last=4, keep_first=1)
    >>> for _ in range(1000):
    ...     cache.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> len(cache), cache.nbytes < 64 * 2 * 2 * 64 * 4
    (1000, True)

    A prompt that is stored once, and two texts that begin with it:

    >>> prompt = regard.KVCache(1, 2, 64, page_size=16, dtype="int8")
    >>> prompt.append(*rng.standard_normal((2, 2, 100, 64)))
    >>> texts = [prompt.fork(), prompt.fork()]
    >>> for text in texts:
    ...     text.append(*rng.standard_normal((2, 2, 1, 64)))
    >>> prompt.lengths, texts[0].lengths
    (array([100]), array([101]))
    """

    @refuses_unknown
    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        dtype: DTypeLike = np.float32,
        keep_last: int | None = None,
        keep_first: int = 0,
        page_size: int | None = None,
        max_bytes: int | None = None,
        path: Path | None = None,
    ) -> None:
        entries = count("batch", batch, maximum=2**31 - 1)
        last, first = arguments.kept_tokens(keep_last, keep_first)
        room = None if capacity is None else count("capacity", capacity, maximum=MOST)
        if room is not None and last is not None and room <= first + last:
            raise ValueError(
                f"capacity must be at least {first + last + 1}, keep_first + keep_last + 1, got "
                f"{room}"
            )
        heads = count("num_kv_heads", num_kv_heads, minimum=1, maximum=MOST)
        dim = count("head_dim", head_dim, minimum=1, maximum=MOST)
        geometry = Geometry(
            heads,
            dim,
            dim if value_dim is None else count("value_dim", value_dim, minimum=1, maximum=MOST),
            stored_type(dtype),
            last,
            first,
            room,
            arguments.size_of_pages(page_size, room, last),
        )
        # With a fixed capacity, one page per entry, so that a lack of memory shows now.
        has_fixed_room = room is not None and page_size is None and last is None
        reserved = entries if has_fixed_room else 0
        limit = None if max_bytes is None else count("max_bytes", max_bytes, minimum=1)
        if path is not None:
            self._content = file.create(file_path(path), geometry, entries, reserved, limit)
        else:
            pool = Pool(geometry, MemoryRoom(PageLayout.of(geometry), 0), limit)
            pool.reserve(reserved)
            self._content = Content(pool, State.empty(entries))

    @classmethod
    def open(cls, path: Path, mode: Literal["r", "r+"] = "r+") -> Self:
        """Open the file of a cache that was created with `path`.

        Parameters
        ----------
        path : path-like
            File of the cache.
        mode : {"r+", "r"}
            Whether to read and write the file, or only to read it.

        Returns
        -------
        KVCache
            A cache with the content of the file.

        Raises
        ------
        ValueError
            If the file is not a cache file, has another version, is truncated or is damaged (the
            message says which), or if `mode` is unknown.
        BlockingIOError
            If the file is open elsewhere: it may have one writer or many readers.
        OSError
            If the file cannot be opened.
        """
        choice("mode", mode, ("r", "r+"))
        return cls._of(file.opened(file_path(path), is_writable=mode == "r+"))

    def __len__(self) -> int:
        """Return the number of tokens that the longest entry has seen."""
        return opened_state(self).longest

    def _shown_options(self) -> dict[str, str] | str:
        geometry, state = self._content.geometry, self._content.state
        if state is None:
            return "closed"
        shown = {"batch": state.batch}
        shown |= {"num_kv_heads": geometry.kv_heads}
        shown |= {"head_dim": geometry.head_dim, "value_dim": geometry.value_dim}
        limits = {}
        if geometry.capacity is not None:
            limits["capacity"] = f"{geometry.capacity}"
        if geometry.keep_last is not None:
            limits["keep_last"] = f"{geometry.keep_last}"
            limits["keep_first"] = f"{geometry.keep_first}"
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
        """Number of tokens seen by each entry, which is the position of its next token (a copy)."""
        return opened_state(self).all_lengths()

    @property
    def batch(self) -> int:
        """Number of batch entries."""
        return opened_state(self).batch

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads."""
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
        """Storage type of keys and values."""
        return self._content.geometry.dtype

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens per entry, or None."""
        return self._content.geometry.capacity

    @property
    def keep_last(self) -> int | None:
        """Number of last tokens that a query sees, or None for all."""
        return self._content.geometry.keep_last

    @property
    def keep_first(self) -> int:
        """Number of first tokens that a query also sees, with `keep_last`."""
        return self._content.geometry.keep_first

    @property
    def page_size(self) -> int:
        """Number of tokens in a page."""
        return self._content.geometry.page_size

    @property
    def keys(self) -> Array:
        """A copy of the keys, shape (batch, kv_heads, len(cache), head_dim).

        The copy has the storage type, or float32 instead of int8. Keys beyond an entry's length and
        evicted keys are 0.
        """
        return stored_tokens(opened_content(self, "keys"), "key")

    @property
    def values(self) -> Array:
        """A copy of the values, shape (batch, kv_heads, len(cache), value_dim), as for `keys`."""
        return stored_tokens(opened_content(self, "values"), "value")

    @property
    def nbytes(self) -> int:
        """Number of bytes of the used pages, scales included, and of the page table.

        A page counts from its first use on, even after it has been given back and waits for reuse.
        All caches that share pages count them in full.
        """
        return opened_content(self, "nbytes").nbytes

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
            If shapes disagree, `lengths` are out of range, the capacity is exceeded, a number to be
            stored as int8 is not finite, or the cache is closed or read-only.
        MemoryError, OSError
            If there is no room to grow in memory or on the disk. OSError also if another program
            has truncated the file.
        FloatingPointError
            Instead of the warning, with ``numpy.errstate(over="raise")``. Nothing is appended.

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
        append.append(writable_content(self, "append"), key, value, lengths)

    def append_ragged(self, key: ArrayLike, value: ArrayLike, starts: ArrayLike) -> None:
        """Append the keys and values of new tokens, any number of them for each entry, packed.

        Parameters
        ----------
        key : array_like, shape (tokens, kv_heads, head_dim)
            The new tokens of all entries, one entry after the other, of any floating-point type.
        value : array_like, shape (tokens, kv_heads, value_dim)
            As for `key`.
        starts : array_like of int, shape (batch + 1,)
            Where each entry's tokens start, followed by the number of all tokens:
            ``key[starts[b]:starts[b + 1]]`` are appended to entry ``b``, which may be none.

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
        append.append_ragged(writable_content(self, "append_ragged"), key, value, starts)

    def flush(self) -> None:
        """Wait until the content of the file is on the disk."""
        opened_content(self, "flush").flush()

    def close(self) -> None:
        """Unlock the file, if there is one, and free the memory. A closed cache cannot be used.

        The content of forks of a cache in a file is copied to memory.

        Raises
        ------
        MemoryError, OSError
            If there is not enough memory for the forks of a cache in a file, or another program has
            truncated the file. The cache then stays open.
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
        """Refuse to copy, because a copy would silently share keys and values."""
        raise TypeError("a KVCache is copied with fork(), and kept with path=")
