"""Pages in a memory-mapped file.

Behind the description, at 4096, page stands behind page. A page has the keys of its tokens, then
their values and, with int8, the scales of both, each at the next multiple of 64 bytes: the file
grows at its end, and what it holds never moves. `_file_table.py` says which page is whose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard.cache import _header
from regard.cache._locked_file import LockedFile
from regard.cache._pool import MOST_PAGES, Pool
from regard.cache._rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.cache._geometry import Geometry

    Array = NDArray[Any]
    Region = tuple[int, tuple[int, ...], np.dtype[Any]]

_PAGES = 4096
_ALIGNMENT = 64  # a cache line


class FilePool(Pool):
    """Pages that lie in a file, locked for as long as it is open."""

    is_in_file = True

    def __init__(self, file: LockedFile, geometry: Geometry) -> None:
        self.file = file
        self.is_writable = file.is_writable
        self._regions, self.stride = _regions(geometry)
        self._map_all()
        super().__init__(geometry, self._mapped_rows())

    @classmethod
    def create(cls, path: str, geometry: Geometry) -> Self:
        """Make a file that does not exist yet, without a page; on failure there is none."""
        _regions(geometry)  # an error before there is anything
        file = LockedFile.create(path, _PAGES)
        try:
            file.write(_header.describe(geometry, 0))
            return cls(file, geometry)
        except BaseException:
            file.remove()
            raise

    @classmethod
    def opened(cls, file: LockedFile, geometry: Geometry) -> Self:
        """Return the pages of a file, of which none has an owner yet."""
        if file.size < _PAGES:
            raise ValueError(
                f"{file.path} is truncated: its pages begin behind {_PAGES} bytes, and it has "
                f"{file.size}"
            )
        if file.is_writable:
            file.allocate(file.size)  # a copy may have been made with holes
        return cls(file, geometry)

    def claim(self, pages: Array) -> None:
        """Give each page an owner, as often as it occurs. The others up to the last are free."""
        self._used = int(pages.max()) + 1
        self._owners = np.bincount(pages).astype(np.int32)
        # From the end, the next is taken.
        self._free = np.flatnonzero(self._owners == 0)[::-1].tolist()

    def size(self, pages: int) -> int:
        """Return how long a file of so many pages is."""
        return _PAGES + pages * self.stride

    def bytes_at(self, page: int, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return what lies so many bytes behind a page's beginning."""
        return np.ndarray(shape, dtype, self._map, _PAGES + page * self.stride + offset)

    def put_into_header(self, offset: int, content: bytes) -> None:
        """Write into the room before the pages."""
        self._map[offset : offset + len(content)] = content

    def flush(self) -> None:
        """Write all that is mapped to the disk, and how long the file is."""
        if self.is_writable:
            self._map.flush()
            self.file.sync()

    def close(self) -> None:
        """Unlock the file. It is unmapped as soon as nobody reads it any more."""
        self.file.close()

    def _map_all(self) -> None:
        self._map = self.file.mapped()
        # A process that died while the file grew may have left a part of a page.
        self._room = min((len(self._map) - _PAGES) // self.stride, MOST_PAGES)

    def _mapped_rows(self) -> Rows:
        return Rows(*(self._view(*region) for region in self._regions))

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self._room == 0:
            return np.empty((0, *shape), dtype)
        lengths = [*shape[1:], dtype.itemsize]
        strides = [math.prod(lengths[axis:]) for axis in range(len(shape))]
        whole = (self._room, *shape)
        return np.ndarray(whole, dtype, self._map, _PAGES + offset, (self.stride, *strides))

    def _extend(self, needed: int) -> None:
        """Let the file be longer by a quarter, or by what is needed where the disk has no more."""
        before, generous = self.file.size, max(needed, self._used + self._used // 4)
        try:
            self.file.allocate(self.size(min(generous, MOST_PAGES)))
        except OSError:
            self.file.allocate(self.size(needed))
        try:
            self._map_all()
        except BaseException:
            self.file.shrink(before)
            raise
        # Who reads the shorter mapping may go on: both show the same bytes.
        self.rows = self._mapped_rows()

    def _have_used_more(self) -> None:
        """Files are mapped in pages of the system's size."""


def _regions(geometry: Geometry) -> tuple[list[Region], int]:
    """Return offset, shape and type of what a page consists of, and how long it is."""
    assert geometry.page_size is not None
    found, end = [], 0
    for (_, *shape), dtype in Rows.forms(geometry, 1, geometry.page_size):
        found.append((end, tuple(shape), dtype))
        end += -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return found, end
