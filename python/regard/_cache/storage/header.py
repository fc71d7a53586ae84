"""The header of a cache's file: the description of the cache, and the place of the ledger.

Numbers in the header are little-endian; keys, values, scales and tables are in the native format of
the machine that wrote them. The description is at 0 and never changes. At 512, two equal records
contain the place of the ledger: ``[batch, columns, place]``. Two areas for ledgers begin at 4096.
Scales that never change follow, if there are any, with a checksum before them, and then pages with
the layout of `rows.PageLayout`.

A record has a number and a checksum. The whole record with the highest number counts: if a process
dies while it writes one record, the other record is still whole.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache.storage.fixed_scales import FixedScales
from regard._cache.storage.geometry import MOST_LAYERS, Geometry
from regard._cache.storage.rows import PageLayout, aligned
from regard._cache.storage.types import GROUP, SCALE_TYPE, STORED_TYPES, stored_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]

MAGIC = b"regardKV"
VERSION = 4
# magic, version, checksum of all with this field 0; type, layers, kv_heads, head_dim, value_dim,
# keep_last, keep_first, capacity, page_size. -1 means None.
_DESCRIPTION = struct.Struct("<8sII16s8q")
RECORDS = 512
_RECORD = struct.Struct("<QI4x")  # number, checksum of it and of the numbers that follow
FIRST_AREA = 4096
AREA_BYTES = 1 << 15
SCALES = FIRST_AREA + 2 * AREA_BYTES
_CHECKSUM = struct.Struct("<I60x")


def describe(geometry: Geometry) -> bytes:
    """Return the description of a file."""
    layers, kv_heads, head_dim, value_dim, dtype, *limits, page_size, _ = geometry
    optional = [-1 if number is None else number for number in limits]
    numbers = [layers, kv_heads, head_dim, value_dim, *optional, page_size]
    return _described(dtype.name.encode(), numbers)


def _described(name: bytes, numbers: list[int]) -> bytes:
    checksum = zlib.crc32(_DESCRIPTION.pack(MAGIC, VERSION, 0, name, *numbers))
    return _DESCRIPTION.pack(MAGIC, VERSION, checksum, name, *numbers)


def describe_scales(scales: FixedScales) -> tuple[int, bytes]:
    """Return the offset of the scales in a file, and their bytes."""
    content = b"".join(scales)
    return SCALES, _CHECKSUM.pack(zlib.crc32(content)) + content


def first_page(layout: PageLayout) -> int:
    """Return the offset of the first page."""
    if layout.fixed_scales is None:
        return SCALES
    return SCALES + aligned(len(describe_scales(layout.fixed_scales)[1]))


def read_scales(
    geometry: Geometry, read: Callable[[int, int], bytes], size: int, path: str
) -> Geometry:
    """Return the geometry of a file with its scales, or raise ValueError if they are damaged."""
    if geometry.dtype.scaled != "heads":
        return geometry
    count = geometry.layers * geometry.kv_heads * SCALE_TYPE.itemsize
    found = read(_CHECKSUM.size + 2 * count, SCALES) if 2 * count < size else b""
    content = found[_CHECKSUM.size :]
    if len(content) != 2 * count or _CHECKSUM.unpack_from(found) != (zlib.crc32(content),):
        raise ValueError(f"{path} is damaged: the checksum of its scales is wrong")
    return geometry._replace(scales=FixedScales(content[:count], content[count:]))


def read_description(start: bytes, path: str) -> Geometry:
    """Return the geometry of a file, or raise a ValueError that describes the defect."""
    if start[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is not a regard cache: it begins with {start[:8]!r}")
    if len(start) < _DESCRIPTION.size:
        raise ValueError(
            f"{path} is truncated: its description needs {_DESCRIPTION.size} bytes, and it has "
            f"{len(start)}"
        )
    _, version, _, name, *numbers = _DESCRIPTION.unpack_from(start)
    if version in (1, 2, 3):
        raise ValueError(
            f"{path} has version {version}, of an earlier regard, and this regard reads version "
            f"{VERSION}: make a new cache, and append the keys and values again"
        )
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version}, and this regard reads version {VERSION}: open it with "
            "the regard that made it"
        )
    if _described(name, numbers) != start[: _DESCRIPTION.size]:
        raise ValueError(f"{path} is damaged: the checksum of its description is wrong")
    layers, kv_heads, head_dim, value_dim, keep_last, keep_first, capacity, page_size = numbers
    text = name.rstrip(b"\0").decode("ascii", "replace")
    # A correct checksum does not prove that regard has written the description.
    possible = 1 <= layers <= MOST_LAYERS and min(kv_heads, head_dim, value_dim) >= 1
    possible &= text in STORED_TYPES
    possible &= keep_last >= 1 or (keep_last == -1 and keep_first == 0)
    possible &= capacity == -1 or keep_last == -1 or capacity > keep_first + keep_last
    possible &= keep_first >= 0 and capacity >= -1 and page_size > 0 and page_size % 16 == 0
    possible &= text != "q4_1" or head_dim % GROUP == value_dim % GROUP == 0
    if not possible:
        raise ValueError(f"{path} is damaged: its description is {text} {numbers}")
    return Geometry(
        layers,
        kv_heads,
        head_dim,
        value_dim,
        stored_type(text),
        None if keep_last < 0 else keep_last,
        keep_first,
        None if capacity < 0 else capacity,
        page_size,
    )


def record(number: int, numbers: Array) -> bytes:
    """Return the bytes of a record."""
    body = numbers.astype("<i8", copy=False).tobytes()
    return _RECORD.pack(number, zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little")))) + body


def record_size(count: int) -> int:
    """Return the number of bytes of a record of this many numbers."""
    return _RECORD.size + 8 * count


def newest(records: Iterable[bytes]) -> tuple[int, Array]:
    """Return the number and the numbers of the newest whole record, or 0 and no numbers."""
    found: list[tuple[int, Array]] = [(0, np.empty(0, np.int64))]
    for content in records:
        number = _RECORD.unpack_from(content)[0]
        numbers = np.frombuffer(content, "<i8", offset=_RECORD.size).astype(np.int64)
        if number < 2**62 and record(number, numbers) == content:
            found.append((number, numbers))
    return max(found, key=lambda each: each[0])
