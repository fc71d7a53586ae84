"""Caches in files, with pages or without."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from regard._cache import header
from regard._cache.content import Content
from regard._cache.file_pool import FilePool
from regard._cache.file_slots import FileSlots
from regard._cache.file_table import FileTable
from regard._cache.locked_file import LockedFile
from regard._cache.paged import PagedContent

if TYPE_CHECKING:
    from regard._cache.geometry import Geometry


def create(path: str, geometry: Geometry) -> Content | PagedContent:
    """Make a file that does not exist yet, of a cache without tokens."""
    path = os.path.realpath(path)
    if geometry.page_size is None:
        return Content.empty(geometry, FileSlots.create(path, geometry, geometry.capacity or 0))
    pool = FilePool.create(path, geometry)
    try:
        table = FileTable.create(pool, geometry.batch)
    except BaseException:
        pool.file.remove()
        raise
    return PagedContent.in_file(geometry, pool, table, np.zeros(geometry.batch, np.int64))


def opened(path: str, *, is_writable: bool) -> Content | PagedContent:
    """Return what a file holds, or raise ValueError with what is wrong with it."""
    file = LockedFile.open(path, is_writable=is_writable)
    try:
        geometry, slots = header.read_description(file.read(header.RECORDS), file.path)
        if geometry.page_size is None:
            rows, lengths, first = FileSlots.opened(file, geometry, slots)
            return Content(geometry, rows, lengths, first)
        pool = FilePool.opened(file, geometry)
        table, lengths = FileTable.opened(pool, geometry)
        geometry = replace(geometry, batch=len(lengths))
        return PagedContent.in_file(geometry, pool, table, lengths)
    except BaseException:
        file.close()
        raise
