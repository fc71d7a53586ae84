"""The bytes before the keys in a cache's file: what it holds, and how much of it.

All numbers are little-endian. At 0 the description, which never changes; at 512 two records of how
long each entry is. A record is written where the older one lies, after the data that it speaks of,
so that whoever dies in between leaves the other. Keys follow at the next multiple of 4096, then the
values; with int8, which `_quantise.py` describes, the scales of the keys' rows and of the values'.
Each begins at the next multiple of its element's size.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cache._geometry import STORED_TYPES, Geometry, stored_type
from regard.cache._rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Region = tuple[int, tuple[int, ...], np.dtype[Any]]

MAGIC = b"regardKV"
VERSION = 1
# magic, version, checksum of all with this field 0; type, batch, kv_heads, head_dim, value_dim,
# slots, window, sink_tokens, capacity, where -1 is None.
_DESCRIPTION = struct.Struct("<8sII16s8q")
_RECORDS = 512
_RECORD = struct.Struct("<QI4x")  # which of all, checksum of this and of the lengths


def describe(geometry: Geometry, slots: int) -> bytes:
    """Return the description of a file."""
    numbers = [
        geometry.batch,
        geometry.kv_heads,
        geometry.head_dim,
        geometry.value_dim,
        slots,
        -1 if geometry.window is None else geometry.window,
        geometry.sink_tokens,
        -1 if geometry.capacity is None else geometry.capacity,
    ]
    name = geometry.dtype.name.encode()
    checksum = zlib.crc32(_DESCRIPTION.pack(MAGIC, VERSION, 0, name, *numbers))
    return _DESCRIPTION.pack(MAGIC, VERSION, checksum, name, *numbers)


def read_description(start: bytes, path: str) -> tuple[Geometry, int]:
    """Return geometry and slots, or raise ValueError with what is wrong with the file."""
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
    batch, kv_heads, head_dim, value_dim, slots, window, sink_tokens, capacity = numbers
    text = name.rstrip(b"\0").decode("ascii", "replace")
    # A right checksum does not mean that regard has written this.
    possible = min(batch, kv_heads, head_dim, value_dim) >= 1 and min(slots, sink_tokens) >= 0
    possible &= min(window, capacity) >= -1 and window != 0 and text in STORED_TYPES
    possible &= (window > 0 or sink_tokens == 0) and capacity in (-1, slots)
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
    )
    try:
        Rows.forms(geometry, batch, slots)
    except MemoryError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return geometry, slots


def data_offset(batch: int) -> int:
    """Return where the keys begin."""
    return -(-record_offset(batch, 2) // 4096) * 4096


def record_offset(batch: int, number: int) -> int:
    """Return where a record begins."""
    return _RECORDS + number * (_RECORD.size + 16 * batch)


def regions(geometry: Geometry, slots: int) -> tuple[list[Region], int]:
    """Return offset, shape and type of all arrays, and where the file ends."""
    found, end = [], data_offset(geometry.batch)
    for shape, dtype in Rows.forms(geometry, geometry.batch, slots):
        start = -(-end // dtype.itemsize) * dtype.itemsize
        found.append((start, shape, dtype))
        end = start + math.prod(shape) * dtype.itemsize
    return found, end


def record(number: int, lengths: Array, first: Array) -> bytes:
    """Return a record."""
    body = lengths.astype("<i8").tobytes() + first.astype("<i8").tobytes()
    return _RECORD.pack(number, zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little")))) + body


def read_record(start: bytes, geometry: Geometry, slots: int, path: str) -> tuple[int, Array]:
    """Return number and content, shape (2, batch), of the newer of the records that are whole."""
    found: list[tuple[int, Array]] = []
    for which in range(2):
        at = record_offset(geometry.batch, which)
        content = np.frombuffer(start, "<i8", 2 * geometry.batch, at + _RECORD.size)
        both = content.astype(np.int64).reshape(2, geometry.batch)
        number = _RECORD.unpack_from(start, at)[0]
        size = record_offset(geometry.batch, 1) - _RECORDS
        lengths, first = both
        whole = record(number, lengths, first) == start[at : at + size]
        fits = (both >= 0).all() and (geometry.window is not None or (lengths <= slots).all())
        if number > 0 and whole and fits:
            found.append((number, both))
    if not found:
        raise ValueError(f"{path} is damaged: neither of its records of lengths is whole")
    return max(found, key=lambda each: each[0])
