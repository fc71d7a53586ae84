"""Check the chunks of a stream, select the visible chunks, and read them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import as_native, shares_memory, stand_in, stored
from regard._arguments.masks import is_sparse
from regard._stream.arrays import read, unread
from regard._stream.masks import StreamMask
from regard._stream.positions import check_end
from regard._stream.source import KeyValueChunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from regard._arguments.positions import Positions

    Array = NDArray[Any]


class UnreadChunk:
    """A chunk as given: arrays that have not been read.

    Raises TypeError or ValueError unless it is a pair (key, value), or a triple with a mask, of
    arrays with the same number of keys.
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
        """The number of keys of the chunk."""
        return int(self.key.shape[-2])

    def arrays(self) -> tuple[tuple[str, Any], tuple[str, Any]]:
        """Return the key and the value, with their names."""
        return ("key", self.key), ("value", self.value)

    def masks(self) -> StreamMask:
        """Return the masks of the chunk, or raise TypeError or ValueError."""
        try:
            return StreamMask(self.mask, self.length)
        except (TypeError, ValueError) as error:
            raise type(error)(f"chunk {self.number}: {error}") from None


def _kind_of(chunk: Any) -> str:
    if isinstance(chunk, np.ndarray):
        return f"an array of shape {chunk.shape}"
    if isinstance(chunk, tuple | list):
        return f"{len(chunk)} elements"
    return type(chunk).__name__


class ChunkLayout:
    """The types and axes that all chunks share with the first chunk, except the keys axis."""

    def __init__(self, first: UnreadChunk) -> None:
        self._first = first.number
        self._arrays = {name: (_others(array), array.dtype) for name, array in first.arrays()}

    def check(self, chunk: UnreadChunk) -> None:
        """Raise ValueError or TypeError if a chunk has other axes or types."""
        for name, array in chunk.arrays():
            (before, dim), dtype = self._arrays[name]
            if _others(array) != (before, dim):
                wanted = ", ".join(map(str, (*before, "kv_len", dim)))
                raise ValueError(
                    f"chunk {chunk.number}: {name} must have shape ({wanted}) as in chunk "
                    f"{self._first}, got {tuple(array.shape)}"
                )
            if array.dtype != dtype:
                raise TypeError(
                    f"chunk {chunk.number}: {name} must be of {dtype} as in chunk "
                    f"{self._first}, got {array.dtype}"
                )

    def stand_ins(self, kv_len: int) -> tuple[Array, Array]:
        """Return keys and values with the shapes and types of the chunks, but without memory."""
        key, value = (
            stored(
                f"chunk {self._first}: {name}",
                stand_in((*before, kv_len, dim), dtype.newbyteorder("=")),
            )
            for name, ((before, dim), dtype) in self._arrays.items()
        )
        return key, value


def _others(array: Any) -> tuple[tuple[int, ...], int]:
    """Return the lengths of the axes before the keys axis, and of the axis after it."""
    return tuple(array.shape[:-2]), int(array.shape[-1])


class Chunk(NamedTuple):
    """A chunk in memory, as the kernels read it."""

    number: int
    start: int
    key: Array
    value: Array
    mask: Any
    is_lent: bool
    """Whether the chunk is in memory that the caller may write to."""

    @property
    def stop(self) -> int:
        """The position after the last key."""
        return self.start + int(self.key.shape[-2])

    def overlaps(self, other: Chunk) -> bool:
        """Return whether two chunks share memory."""
        mine, others = (self.key, self.value), (other.key, other.value)
        return any(shares_memory(a, b) for a in mine for b in others)


class ChunkSource(NamedTuple):
    """The source of chunks, with the information available before the first chunk is requested."""

    chunks: Iterator[Any]
    kv_len: int | None
    """The total number of keys, or None if it is not known."""
    may_refill: bool
    """Whether the memory of a chunk may be overwritten when the next one is requested."""


def source_of(chunks: Any) -> ChunkSource:
    """Return a source of chunks, after checking all chunks that are already known.

    Raises TypeError or ValueError.
    """
    if isinstance(chunks, KeyValueChunks):
        return ChunkSource(chunks.unread(), chunks.kv_len, may_refill=False)
    if isinstance(chunks, tuple | list):
        known = [UnreadChunk(number, chunk) for number, chunk in enumerate(chunks)]
        for chunk in known[1:]:
            ChunkLayout(known[0]).check(chunk)
        return ChunkSource(iter(known), sum(chunk.length for chunk in known), may_refill=False)
    try:
        return ChunkSource(iter(chunks), None, may_refill=True)
    except TypeError:
        raise TypeError(
            f"chunks must be an iterable of pairs (key, value), got {type(chunks).__name__}"
        ) from None


def produce(
    source: Iterator[Any], positions: Positions, mask: StreamMask, should_stop: Callable[[], bool]
) -> Generator[ChunkLayout | Chunk, None, None]:
    """Yield the layout of the chunks, and then each chunk that a query can see.

    The generator ends with the last key that a query can see, or when `should_stop` returns True
    because the call has ended. It raises the exceptions of `source`, or TypeError or ValueError for
    a chunk that does not fit. If `source` is a generator, it is closed at the end.
    """
    try:
        layout, start, number = None, 0, -1
        first: int
        last: float
        for number, each in enumerate(source):
            if should_stop():  # checked here because no chunk may ever be visible
                return
            given = each if isinstance(each, UnreadChunk) else UnreadChunk(number, each)
            stop = start + given.length
            mask.check_chunk(number, start, stop)
            if given.mask is not None and mask.is_given:
                raise TypeError(
                    f"chunk {number}: mask must be None, as mask= is given for the keys of all "
                    "chunks, got another mask"
                )
            if layout is None:
                layout = ChunkLayout(given)
                yield layout
                first, last = mask.narrowed(positions.visible())
            else:
                layout.check(given)
            if start < last and stop > max(first, start) and mask.shows(start, stop):
                own = given.masks()
                if own.shows(0, given.length):
                    yield _in_memory(given, start, mask, own, should_stop)
            start = stop
            if start >= last:
                return
        if layout is None:
            raise ValueError(
                "chunks must contain at least one chunk, which determines types and value_dim, "
                "got none"
            )
        check_end(positions, number + 1, start)
        mask.check_end(start)
    finally:
        if isinstance(source, Generator):
            source.close()


def _in_memory(
    given: UnreadChunk,
    start: int,
    mask: StreamMask,
    own_mask: StreamMask,
    should_stop: Callable[[], bool],
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
    if own_mask.is_given:
        # Copied because the mask's memory may be reused while this chunk is computed.
        masks = own_mask.read(0, given.length).map(
            lambda part: part if is_sparse(part) else np.array(part)
        )
    return Chunk(given.number, start, arrays[0], arrays[1], masks.argument, is_lent)
