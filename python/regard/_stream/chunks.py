"""The chunks of a stream: what comes, what is needed of it, and how it is read."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import as_native, shares_memory, stored
from regard._stream.arrays import read, unread
from regard._stream.masks import StreamMask
from regard._stream.positions import check_end
from regard._stream.source import KeyValueChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from regard._arguments.masks import Masks
    from regard._arguments.positions import Positions

    Array = NDArray[Any]


class Given:
    """A chunk as it was given: arrays of which nothing has been read.

    Raises TypeError or ValueError if it is not a pair (key, value), or a triple with a mask, of
    arrays with as many keys.
    """

    def __init__(self, number: int, chunk: Any) -> None:
        if not isinstance(chunk, tuple | list) or len(chunk) not in (2, 3):
            raise TypeError(
                f"chunk {number} must be a pair (key, value) or a triple (key, value, mask), got "
                f"{_kind_of(chunk)}; for keys and values as two arrays pass "
                "regard.KeyValueChunks(key, value)"
            )
        self.number = number
        self.key = unread(f"chunk {number}: key", chunk[0])
        self.value = unread(f"chunk {number}: value", chunk[1])
        self.mask = chunk[2] if len(chunk) == 3 else None
        for name, array in (("key", self.key), ("value", self.value)):
            if len(array.shape) < 2:
                raise ValueError(
                    f"chunk {number}: {name} must have at least 2 dimensions, (length, dim), got "
                    f"shape {array.shape}"
                )
        if self.key.shape[-2] != self.value.shape[-2]:
            raise ValueError(
                f"chunk {number}: key and value must share kv_len, got {self.key.shape[-2]} and "
                f"{self.value.shape[-2]}"
            )

    @property
    def length(self) -> int:
        """How many keys it has."""
        return int(self.key.shape[-2])

    def arrays(self) -> tuple[tuple[str, Any], tuple[str, Any]]:
        """Return its key and its value, with their names."""
        return ("key", self.key), ("value", self.value)

    def masks_in_memory(self) -> Masks:
        """Return its own masks."""
        try:
            return StreamMask(self.mask, self.length).read(0, self.length)
        except (TypeError, ValueError) as error:
            raise type(error)(f"chunk {self.number}: {error}") from None


def _kind_of(chunk: Any) -> str:
    if isinstance(chunk, np.ndarray):
        return f"an array of shape {chunk.shape}"
    if isinstance(chunk, tuple | list):
        return f"{len(chunk)} elements"
    return type(chunk).__name__


class Layout:
    """What all chunks must share with the first one: every axis but that of keys, and types."""

    def __init__(self, first: Given) -> None:
        self._first = first.number
        self._arrays = {name: (_others(array), array.dtype) for name, array in first.arrays()}

    def check(self, chunk: Given) -> None:
        """Raise ValueError or TypeError if a chunk has other axes or types."""
        for name, array in chunk.arrays():
            (before, dim), dtype = self._arrays[name]
            if _others(array) != (before, dim):
                wanted = ", ".join(map(str, (*before, "kv_len", dim)))
                raise ValueError(
                    f"chunk {chunk.number}: {name} must have shape ({wanted}) like that of chunk "
                    f"{self._first}, got {tuple(array.shape)}"
                )
            if array.dtype != dtype:
                raise TypeError(
                    f"chunk {chunk.number}: {name} must be of {dtype} like that of chunk "
                    f"{self._first}, got {array.dtype}"
                )

    def without_keys(self) -> tuple[Array, Array]:
        """Return keys and values of the shapes and types of the chunks, without any key."""
        key, value = (
            stored(
                f"chunk {self._first}: {name}", np.zeros((*before, 0, dim), dtype.newbyteorder("="))
            )
            for name, ((before, dim), dtype) in self._arrays.items()
        )
        return key, value


def _others(array: Any) -> tuple[tuple[int, ...], int]:
    """Return the axes before that of keys, and the one after it."""
    return tuple(array.shape[:-2]), int(array.shape[-1])


class Chunk(NamedTuple):
    """A chunk in memory, as the kernels read it."""

    number: int
    start: int
    key: Array
    value: Array
    mask: Any
    is_lent: bool
    """Whether it lies in memory that the caller may write to."""

    @property
    def stop(self) -> int:
        """The position after its last key."""
        return self.start + int(self.key.shape[-2])

    def overlaps(self, other: Chunk) -> bool:
        """Tell whether two chunks lie in the same memory."""
        mine, others = (self.key, self.value), (other.key, other.value)
        return any(shares_memory(a, b) for a in mine for b in others)


class Source(NamedTuple):
    """Where chunks come from, and what is known of them before the first one is asked for."""

    chunks: Iterator[Any]
    kv_len: int | None
    """How many keys they have."""
    may_refill: bool
    """Whether they may lie in memory that is written to when the next one is asked for."""


def source_of(chunks: Any) -> Source:
    """Return a source of chunks, of which all are checked that are known already.

    Raises TypeError or ValueError.
    """
    if isinstance(chunks, KeyValueChunks):
        return Source(chunks.unread(), chunks.kv_len, may_refill=False)
    if isinstance(chunks, tuple | list):
        known = [Given(number, chunk) for number, chunk in enumerate(chunks)]
        for chunk in known[1:]:
            Layout(known[0]).check(chunk)
        return Source(iter(known), sum(chunk.length for chunk in known), may_refill=False)
    try:
        return Source(iter(chunks), None, may_refill=True)
    except TypeError:
        raise TypeError(
            f"chunks must be an iterable of pairs (key, value), got {type(chunks).__name__}"
        ) from None


def produce(
    source: Iterator[Any], positions: Positions, mask: StreamMask, should_stop: Callable[[], bool]
) -> Generator[Layout | Chunk, None, None]:
    """Yield the layout of the chunks, and then each of those that a query can see.

    It ends with the last key that a query can see, or when `should_stop` says that the call has
    ended, and raises what `source` raises, or TypeError or ValueError for a chunk that does not
    fit. A generator is closed at the end.
    """
    try:
        layout, start, number = None, 0, -1
        first: int
        last: float
        for number, each in enumerate(source):
            if should_stop():  # here, as nobody may ever see a chunk
                return
            given = each if isinstance(each, Given) else Given(number, each)
            stop = start + given.length
            mask.check_chunk(number, start, stop)
            if given.mask is not None and mask.is_given:
                raise TypeError(
                    f"chunk {number}: mask must be None, as mask= is given for the keys of all "
                    "chunks, got another one"
                )
            if layout is None:
                layout = Layout(given)
                yield layout
                first, last = positions.visible()
            else:
                layout.check(given)
            if start < last and stop > max(first, start):
                yield _in_memory(given, start, mask, should_stop)
            start = stop
            if start >= last:
                return
        if layout is None:
            raise ValueError(
                "chunks must give one chunk at least, of which types and value_dim are known, "
                "got none"
            )
        check_end(positions, number + 1, start)
        mask.check_end(start)
    finally:
        if isinstance(source, Generator):
            source.close()


def _in_memory(
    given: Given, start: int, mask: StreamMask, should_stop: Callable[[], bool]
) -> Chunk:
    arrays, is_lent = [], False
    for name, array in given.arrays():
        raw, raw_is_lent = read(f"chunk {given.number}: {name}", array, should_stop)
        if raw.shape != tuple(array.shape):
            raise ValueError(
                f"chunk {given.number}: {name} must have the shape that it had before it was read, "
                f"{tuple(array.shape)}, got {raw.shape}"
            )
        ready = stored(f"chunk {given.number}: {name}", raw)
        ready = as_native(ready, ready.dtype.newbyteorder("="))
        is_lent |= raw_is_lent and np.may_share_memory(ready, raw)
        arrays.append(ready)
    masks = mask.read(start, start + given.length)
    if given.mask is not None:
        # A copy: the mask's memory may be filled again while this chunk is computed.
        masks = given.masks_in_memory().map(np.array)
    return Chunk(given.number, start, arrays[0], arrays[1], masks.argument, is_lent)
