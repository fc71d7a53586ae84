"""Check the chunks of a stream, select the visible chunks, and copy them to memory."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import as_array, as_native, converted, stand_in, stored
from regard._stream.masks import StreamMask
from regard._stream.source import KeyValueChunks, unread_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from regard._arguments.arrays import Array
    from regard._arguments.positions import Positions


class UnreadChunk:
    """A chunk as given: arrays that have not been read.

    Raises TypeError or ValueError unless it is a pair (key, value), or a triple with a mask, of
    arrays with the same number of keys.
    """

    def __init__(self, number: int, chunk: Any) -> None:
        if not isinstance(chunk, tuple | list) or len(chunk) not in (2, 3):
            kind = type(chunk).__name__
            if isinstance(chunk, np.ndarray):
                kind = f"an array of shape {chunk.shape}"
            elif isinstance(chunk, tuple | list):
                kind = f"{len(chunk)} elements"
            raise TypeError(
                f"chunk {number} must be a pair (key, value) or a triple (key, value, mask), got "
                f"{kind}; for keys and values as two arrays pass regard.KeyValueChunks(key, value)"
            )
        self.number = number
        pair = unread_pair(chunk[0], chunk[1], f"chunk {number}: ")
        self.arrays = dict(zip(("key", "value"), pair, strict=True))
        self.mask = chunk[2] if len(chunk) == 3 else None
        self.length = int(pair[0].shape[-2])

    def without_memory(self) -> UnreadChunk:
        """Return a chunk with the axes and types of this chunk, whose arrays need no memory."""
        same = copy.copy(self)
        same.mask = None
        same.arrays = {name: stand_in(x.shape, x.dtype) for name, x in self.arrays.items()}
        return same

    def check_as(self, first: UnreadChunk) -> None:
        """Raise ValueError or TypeError if this chunk has other axes or types than the first."""
        for name, array in self.arrays.items():
            before, dim = first.arrays[name].shape[:-2], first.arrays[name].shape[-1]
            if (array.shape[:-2], array.shape[-1]) != (before, dim):
                wanted = ", ".join(map(str, (*before, "kv_len", dim)))
                raise ValueError(
                    f"chunk {self.number}: {name} must have shape ({wanted}) as in chunk "
                    f"{first.number}, got {tuple(array.shape)}"
                )
            if array.dtype != first.arrays[name].dtype:
                raise TypeError(
                    f"chunk {self.number}: {name} must be of {first.arrays[name].dtype} as in "
                    f"chunk {first.number}, got {array.dtype}"
                )

    def stand_ins(self, kv_len: int) -> tuple[Array, Array]:
        """Return keys and values with the axes and types of this chunk, but without memory."""
        key, value = (
            stored(
                f"chunk {self.number}: {name}",
                stand_in(
                    (*array.shape[:-2], kv_len, array.shape[-1]), array.dtype.newbyteorder("=")
                ),
            )
            for name, array in self.arrays.items()
        )
        return key, value

    def copied(self, check: Callable[[str, Array], None]) -> tuple[Array, Array]:
        """Return copies of the key and the value, after checking the arrays that were read."""
        copies = []
        for name, array in self.arrays.items():
            where = f"chunk {self.number}: {name}"
            part = as_array(where, array)
            check(f"chunk {self.number}", part)
            if part.shape != tuple(array.shape):
                raise ValueError(
                    f"{where} must have the shape that it had before it was read, "
                    f"{tuple(array.shape)}, got {part.shape}"
                )
            ready = stored(where, converted(part, part.dtype))
            copies.append(as_native(ready, ready.dtype.newbyteorder("=")))
        return copies[0], copies[1]


class Chunk(NamedTuple):
    """A chunk that was copied to memory, as the kernels read it."""

    number: int
    start: int
    key: Array
    value: Array
    mask: Any

    @property
    def stop(self) -> int:
        """The position after the last key."""
        return self.start + int(self.key.shape[-2])


def source_of(chunks: Any) -> tuple[Iterator[Any], int | None]:
    """Return the chunks, and the total number of keys if it is known.

    Raises TypeError or ValueError, also for chunks that are already known.
    """
    if isinstance(chunks, KeyValueChunks):
        return chunks.unread(), chunks.kv_len
    if isinstance(chunks, tuple | list):
        known = [UnreadChunk(number, chunk) for number, chunk in enumerate(chunks)]
        for chunk in known[1:]:
            chunk.check_as(known[0])
        return iter(known), sum(chunk.length for chunk in known)
    try:
        return iter(chunks), None
    except TypeError:
        raise TypeError(
            f"chunks must be an iterable of pairs (key, value), got {type(chunks).__name__}"
        ) from None


def produce(
    source: Iterator[Any],
    positions: Positions,
    mask: StreamMask,
    check: Callable[[str, Array], None],
    should_stop: Callable[[], bool],
) -> Generator[UnreadChunk | Chunk, None, None]:
    """Yield the first chunk unread, and then each chunk that a query can see.

    The generator ends with the last key that a query can see, or when `should_stop` returns True
    because the call has ended. It raises the exceptions of `source`, or TypeError or ValueError for
    a chunk that does not fit. `check` examines the arrays as they were read.
    """
    first, start, number = None, 0, -1
    begin: int
    end: float
    for each in source:
        if should_stop():  # checked here because no chunk may ever be visible
            return
        number += 1
        given = each if isinstance(each, UnreadChunk) else UnreadChunk(number, each)
        del each  # an array may be read, copied and released before the next one is read
        stop = start + given.length
        mask.check_chunk(number, start, stop)
        if given.mask is not None and mask.is_given:
            raise TypeError(
                f"chunk {number}: mask must be None, as mask= is given for the keys of all "
                "chunks, got another mask"
            )
        if first is None:
            first = given.without_memory()
            yield first
            begin, end = mask.narrowed(positions.visible())
        else:
            given.check_as(first)
        if start < end and stop > max(begin, start) and mask.shows(start, stop):
            try:
                own = StreamMask(given.mask, given.length)
            except (TypeError, ValueError) as error:
                raise type(error)(f"chunk {number}: {error}") from None
            if own.shows(0, given.length):
                read = own.read(0, given.length) if own.is_given else mask.read(start, stop)
                chunk = Chunk(number, start, *given.copied(check), read.argument)
                del given, own, read
                yield chunk
                del chunk
        start = stop
        if start >= end:
            return
    if first is None:
        raise ValueError(
            "chunks must contain at least one chunk, which determines types and value_dim, got none"
        )
    _check_end(positions, number + 1, start)
    mask.check_end(start)


def _check_end(positions: Positions, count: int, total: int) -> None:
    """Raise ValueError if `count` chunks have fewer keys in total than the lengths require."""
    for name, numbers in (("key_lengths", positions.end), ("left_padding", positions.begin)):
        most = 0 if numbers is None else int(numbers.max(initial=0))
        if most > total:
            raise ValueError(
                f"{name} must be from 0 to {total}, the number of keys in the {count} "
                f"chunks received, got {most}"
            )
