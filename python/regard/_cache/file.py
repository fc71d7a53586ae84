"""Caches in files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from regard._cache.content import Content
from regard._cache.storage import header
from regard._cache.storage.file_room import FileCopyRoom, FileRoom, end_of
from regard._cache.storage.ledger import Ledger
from regard._cache.storage.locked_file import LockedFile
from regard._cache.storage.pool import Pool
from regard._cache.storage.rows import PageLayout
from regard._cache.storage.state import State

if TYPE_CHECKING:
    from regard._cache.storage.geometry import Geometry


def create(
    path: str, geometry: Geometry, batch: int, reserved_pages: int, max_bytes: int | None
) -> Content:
    """Create a file for a cache without tokens; neither a file nor a link may have its name."""
    layout = PageLayout.of(geometry)  # raises before anything is created
    folder, name = os.path.split(path)
    place = os.path.join(os.path.realpath(folder), name)
    file = LockedFile.create(place, end_of(reserved_pages, layout))
    try:
        if geometry.scales is not None:
            offset, scales = header.describe_scales(geometry.scales)
            file.write(scales, offset)
        file.write(header.describe(geometry))
        pool = Pool(geometry, FileRoom(file, layout), max_bytes)
        pool.ledger = Ledger.created(pool, file, State.empty(batch))
        return Content.of_file(pool, pool.ledger)
    except BaseException:
        file.remove()
        raise


def opened(path: str, *, is_writable: bool, layers: int | None = None) -> Content:
    """Return the content of a file, or raise a ValueError that describes the defect."""
    file = LockedFile.open(path, is_writable=is_writable)
    try:
        geometry = header.read_description(file.read(header.RECORDS), file.path)
        if layers is not None and geometry.layers != layers:
            raise ValueError(
                f"{file.path} has {geometry.layers} layers: open it with KVCaches.open()"
            )
        if file.size < header.SCALES:
            raise ValueError(
                f"{file.path} is truncated: its pages begin after {header.SCALES} bytes, and it "
                f"has {file.size}"
            )
        geometry = header.read_scales(geometry, file.read, file.size, file.path)
        try:
            layout = PageLayout.of(geometry)
        except MemoryError as error:
            raise ValueError(f"{file.path} is damaged: {error}") from None
        room = FileRoom(file, layout) if is_writable else FileCopyRoom(file, layout)
        pool = Pool(geometry, room)
        pool.ledger = Ledger.opened(pool, file, room)
        if is_writable:
            file.allocate(file.size)  # a copied file may have holes
        pool.claim(room.pages_of_file)
        return Content.of_file(pool, pool.ledger)
    except BaseException:
        file.close()
        raise
