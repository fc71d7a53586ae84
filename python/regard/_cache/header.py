"""The bytes before the keys in a cache's file: what it holds, and how much of it.

Numbers are little-endian here; keys, values, scales and tables are as on the machine that wrote
them. At 0 the description, which never changes; at 512 two records of how long each entry is. A
record is written where the older one lies, after the data that it speaks of, so that whoever dies
in between leaves the other. Keys follow at the next multiple of 4096, then the values; with int8,
which `quantise.py` describes, the scales of the keys' rows and of the values'. Each begins at the
next multiple of its element's size.

Of a file in pages, the description alone is as said here: `file_table.py` has the rest.
"""

from __future__ import annotations

import math
import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.geometry import STORED_TYPES, Geometry, stored_type
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Region = tuple[int, tuple[int, ...], np.dtype[Any]]

MAGIC = b"regardKV"
VERSION = 2
# magic, version, checksum of all with this field 0; type, batch, kv_heads, head_dim, value_dim,
# slots, window, sink_tokens, capacity, page_size, where -1 is None. With pages, batch and slots are
# 0: they change.
_DESCRIPTION = struct.Struct("<8sII16s9q")
RECORDS = 512
_RECORD = struct.Struct("<QI4x")  # which of all, checksum of this and of the numbers behind


def describe(geometry: Geometry, slots: int) -> bytes:
    """Return the description of a file."""
    is_paged = geometry.page_size is not None
    numbers = [
        0 if is_paged else geometry.batch,
        geometry.kv_heads,
        geometry.head_dim,
        geometry.value_dim,
        slots,
        -1 if geometry.window is None else geometry.window,
        geometry.sink_tokens,
        -1 if geometry.capacity is None else geometry.capacity,
        -1 if geometry.page_size is None else geometry.page_size,
    ]
    name = geometry.dtype.name.encode()
    checksum = zlib.crc32(_DESCRIPTION.pack(MAGIC, VERSION, 0, name, *numbers))
    return _DESCRIPTION.pack(MAGIC, VERSION, checksum, name, *numbers)


def read_description(start: bytes, path: str) -> tuple[Geometry, int]:
    """Return geometry and slots, or raise ValueError with what is wrong with the file.

    With pages, batch and slots are 0.
    """
    if start[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is no cache of regard: it begins with {start[:8]!r}")
    if len(start) < _DESCRIPTION.size:
        raise ValueError(
            f"{path} is truncated: its description takes {_DESCRIPTION.size} bytes, and it has "
            f"{len(start)}"
        )
    _, version, checksum, name, *numbers = _DESCRIPTION.unpack_from(start)
    if version != VERSION:
        raise ValueError(f"{path} has version {version}, and this regard reads {VERSION}")
    if zlib.crc32(_DESCRIPTION.pack(MAGIC, version, 0, name, *numbers)) != checksum:
        raise ValueError(f"{path} is damaged: the checksum of its description is wrong")
    batch, kv_heads, head_dim, value_dim, slots, window, sink_tokens, capacity, page_size = numbers
    text = name.rstrip(b"\0").decode("ascii", "replace")
    # A right checksum does not mean that regard has written this.
    possible = min(kv_heads, head_dim, value_dim) >= 1 and min(slots, sink_tokens) >= 0
    possible &= min(window, capacity, page_size) >= -1 and window != 0 and text in STORED_TYPES
    possible &= window > 0 or sink_tokens == 0
    if page_size < 0:
        possible &= batch >= 1 and capacity in (-1, slots)
    else:
        possible &= page_size > 0 and page_size % 16 == 0
        possible &= batch == slots == 0 and window == -1
    if not possible:
        raise ValueError(f"{path} is damaged: its description is {text} {numbers}")
    geometry = Geometry(
        batch,
        kv_heads,
        head_dim,
        value_dim,
        stored_type(text),
        None if window < 0 else window,
        sink_tokens,
        None if capacity < 0 else capacity,
        None if page_size < 0 else page_size,
    )
    try:
        if page_size < 0:
            Rows.forms(geometry, batch, slots)
        else:
            Rows.forms(geometry, 1, page_size)
    except MemoryError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return geometry, slots


def data_offset(batch: int) -> int:
    """Return where the keys begin."""
    return -(-record_offset(batch, 2) // 4096) * 4096


def record_offset(batch: int, number: int) -> int:
    """Return where a record begins."""
    return RECORDS + number * record_size(2 * batch)


def aligned(offset: int) -> int:
    """Return the next multiple of 64, a cache line: where arrays begin in a file of pages."""
    return -(-offset // 64) * 64


def regions(geometry: Geometry, slots: int) -> tuple[list[Region], int]:
    """Return offset, shape and type of all arrays, and where the file ends."""
    found, end = [], data_offset(geometry.batch)
    for shape, dtype in Rows.forms(geometry, geometry.batch, slots):
        start = -(-end // dtype.itemsize) * dtype.itemsize
        found.append((start, shape, dtype))
        end = start + math.prod(shape) * dtype.itemsize
    return found, end


def record(number: int, *arrays: Array) -> bytes:
    """Return a record."""
    body = b"".join(array.astype("<i8").tobytes() for array in arrays)
    return _RECORD.pack(number, zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little")))) + body


def record_size(count: int) -> int:
    """Return how many bytes a record of so many numbers has."""
    return _RECORD.size + 8 * count


def newest(records: Iterable[bytes]) -> tuple[int, Array]:
    """Return which it is and the numbers of the newest record that is whole; or 0, and none."""
    found: list[tuple[int, Array]] = [(0, np.empty(0, np.int64))]
    for content in records:
        number = _RECORD.unpack_from(content)[0]
        numbers = np.frombuffer(content, "<i8", offset=_RECORD.size).astype(np.int64)
        if number < 2**62 and record(number, numbers) == content:
            found.append((number, numbers))
    return max(found, key=lambda each: each[0])


def check_lengths(numbers: Array, most: int | None, path: str) -> None:
    """Refuse what was read as lengths, and as the first kept positions, if it cannot be."""
    if not numbers.size:
        raise ValueError(f"{path} is damaged: neither of its records of lengths is whole")
    for number in (int(numbers.min()), int(numbers.max())):
        if number < 0 or (most is not None and number > most):
            limit = "at least 0" if most is None else f"from 0 to {most}"
            raise ValueError(f"{path} is damaged: its lengths must be {limit}, got {number}")


def read_record(start: bytes, geometry: Geometry, slots: int, path: str) -> tuple[int, Array]:
    """Return number and content, shape (2, batch), of the newer of the records that are whole."""
    offsets = [record_offset(geometry.batch, which) for which in range(3)]
    number, numbers = newest(start[at:end] for at, end in pairwise(offsets))
    check_lengths(numbers, slots if geometry.window is None else None, path)
    return number, numbers.reshape(2, geometry.batch)
