"""The cache that callers see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, Unpack, overload

import numpy as np

from regard._arguments.hints import warn_if_zero_one
from regard._arguments.keywords import refuse_keywords, translates_keywords
from regard._arguments.numbers import file_path
from regard._arguments.options import (
    CacheExplainOptions,
    CacheOptions,
    ResultOptions,
    names_of,
    takes_options,
)
from regard._cache import arguments, attend, explain, file
from regard._cache.content import Content
from regard._cache.storage.geometry import Geometry, stored_type
from regard._cache.storage.memory_room import MemoryRoom
from regard._cache.storage.pool import Pool
from regard._cache.storage.quantize import quantized
from regard._cache.storage.rows import Layout
from regard._cache.storage.state import State
from regard._cache.stored import stored_tokens
from regard._runtime.public import public
from regard._show.shows_options import ShowsOptions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from regard._attention.explanation import Explanation

    Array = NDArray[Any]
    Path = str | os.PathLike[str]


_APPENDED = "leave it out, and append it first: cache.append(key, value)"
# What to say of keywords that are not options, because a cache knows them.
_OF_THE_CACHE = {
    **dict.fromkeys(("key", "value", "k", "v"), _APPENDED),
    "causal": "leave it out: attention to a cache is causal unless is_causal=False",
}
_OPTIONS = frozenset(names_of(CacheOptions, ResultOptions))
# More are not read by anybody, in one line.
_MOST_LENGTHS = 16


@public
class KVCache(ShowsOptions):
    """Keys and values of the tokens so far, to which new queries attend.

    A layer that generates text appends the keys and values of its new tokens and attends with their
    queries; nothing that was computed before is computed or copied again::

        cache.append(key, value)
        output = cache.attend(query)

    Positions are absolute: the first token of a batch entry stands at 0, and the next at
    ``cache.lengths``, whatever has been evicted meanwhile.

    Parameters
    ----------
    batch, num_kv_heads, head_dim : int
        Sizes of the keys.
    value_dim : int, optional
        Size of the values; `head_dim` when not given.
    capacity : int, optional
        The most tokens that an entry may have; appending more is an error. Without `page_size`,
        each entry has one page of this size from the beginning, so that its tokens lie side by
        side. With `keep_last`, texts of any length fit, and the limit is on one append: as many
        tokens as there is room for, or ``capacity - keep_first - keep_last`` (at least 1) at any
        time.
    dtype : dtype, default float32
        What keys and values are stored as: float16, bfloat16 (of the package ml_dtypes, or its
        name), float32, float64, or int8, which is a quarter of float32: see the notes. Results
        have the result type of the query and of this, and of the query alone with int8.
    keep_last : int, optional
        Every query sees this many of the last tokens, its own included, as with the option
        ``window=(keep_last - 1, 0)`` of `scaled_dot_product_attention`. Pages of tokens that no
        coming query sees are evicted and used again.
    keep_first : int, default 0
        With `keep_last`, this many of the first tokens are kept and seen too (Xiao et al. 2024,
        "Efficient Streaming Language Models with Attention Sinks").
    page_size : int, optional
        How many tokens a page holds, a multiple of 16. Memory is taken page by page, and each entry
        has a table of its pages: growing copies nothing, `reorder` and `fork` share pages, so that
        there is one copy of a prompt that many texts begin with. 192 when not given, or fewer with
        a small `keep_last`, or all of `capacity`.
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
    for any page size, in memory or in a file. With `keep_last`, they are those of the option
    ``window=(keep_last - 1, 0)``, and with `keep_first` those of a bool mask that shows the same
    keys.

    The memory is bounded then: each entry has pages for the tokens that are kept and for two
    appends, one after the other, and at most two pages more (three if the first tokens do
    not fill a page). Pages are used again and not given back, so the largest two appends count. The
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
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        capacity: int | None = None,
        dtype: DTypeLike = np.float32,
        keep_last: int | None = None,
        keep_first: int = 0,
        page_size: int | None = None,
        path: Path | None = None,
    ) -> None:
        entries = arguments.size("batch", batch, minimum=1, maximum=2**31 - 1)
        last, first = arguments.kept_tokens(keep_last, keep_first)
        room = None if capacity is None else arguments.size("capacity", capacity)
        if room is not None and last is not None and room <= first + last:
            raise ValueError(
                f"capacity must be at least {first + last + 1}, keep_first + keep_last + 1, got "
                f"{room}"
            )
        heads = arguments.size("num_kv_heads", num_kv_heads, minimum=1)
        dim = arguments.size("head_dim", head_dim, minimum=1)
        geometry = Geometry(
            heads,
            dim,
            dim if value_dim is None else arguments.size("value_dim", value_dim, minimum=1),
            stored_type(dtype),
            last,
            first,
            room,
            arguments.size_of_pages(page_size, room, last),
        )
        # A page an entry of a fixed capacity, so that a lack of memory shows now.
        has_fixed_room = room is not None and page_size is None and last is None
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

    def __len__(self) -> int:
        """Return how many tokens the longest entry has seen."""
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
        """How many tokens each entry has seen, the position of its next one: a copy."""
        return opened_state(self).all_lengths()

    @property
    def batch(self) -> int:
        """How many batch entries there are."""
        return opened_state(self).batch

    @property
    def num_kv_heads(self) -> int:
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
    def keep_last(self) -> int | None:
        """How many of the last tokens a query sees, or None for all."""
        return self._content.geometry.keep_last

    @property
    def keep_first(self) -> int:
        """With a window, how many of the first tokens are seen too."""
        return self._content.geometry.keep_first

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
        if geometry.is_quantized:
            rows = quantized(keys, values, counts)
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
            Narrows what is seen, the first tokens included.
        {options}

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
        if not _OPTIONS.issuperset(options):
            unknown = [name for name in options if name not in _OPTIONS]
            _refuse("KVCache.attend", unknown, names_of(CacheOptions, ResultOptions))
        if mask is not None:
            warn_if_zero_one(mask)
        result: Array | tuple[Array, Array] | tuple[Array, Array, Array] = attend.attend(
            opened_content(self, "attend"), query, mask, options
        )
        return result

    @takes_options(
        CacheExplainOptions, is_causal=True, query_offset=None, reference="as for `attend`"
    )
    def explain(
        self,
        query: ArrayLike,
        mask: ArrayLike | None = None,
        **options: Unpack[CacheExplainOptions],
    ) -> Explanation:
        """Say what `attend` would compute with these arguments, and how.

        Parameters
        ----------
        query, mask
            As for `attend`.
        {options}

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
        names = names_of(CacheExplainOptions)
        if unknown := [name for name in options if name not in names]:
            _refuse("KVCache.explain", unknown, names)
        given: dict[str, Any] = {**options}
        return explain.explain(opened_content(self, "explain"), query, mask, given)

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


def _refuse(call: str, unknown: Iterable[str], options: Iterable[str]) -> NoReturn:
    """Raise the TypeError for keywords that `attend` and `explain` do not have."""
    refuse_keywords(call, unknown, ("query", "mask", *options), _OF_THE_CACHE, kind="cache")


def opened_content(cache: KVCache, method: str) -> Content:
    """Return what a cache holds, or raise an error where it is closed or is not one."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"{method} must be called on a KVCache, got {type(cache).__name__}")
    content = cache._content
    if content.state is None:
        raise ValueError("the cache is closed")
    return content


def opened_state(cache: KVCache) -> State:
    """Return the state of a cache, or raise ValueError where it is closed."""
    state = cache._content.state
    if state is None:
        raise ValueError("the cache is closed")
    return state
