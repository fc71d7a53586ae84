"""Pages in a memory-mapped file.

Behind the description, at 4096, page stands behind page. A page has the keys of its tokens, then
their values and, with int8, the scales of both, each at the next multiple of 64 bytes: the file
grows at its end, and what it holds never moves. `file_table.py` says which page is whose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard._cache import header
from regard._cache.locked_file import LockedFile
from regard._cache.page_state import Forks, leave_file
from regard._cache.pool import MOST_PAGES, Pool
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]
    Region = tuple[int, tuple[int, ...], np.dtype[Any]]

_FIRST_PAGE = 4096


class FilePool(Pool):
    """Pages that lie in a file, locked for as long as it is open."""

    def __init__(self, file: LockedFile, geometry: Geometry) -> None:
        self.file = file
        self.forks = Forks()  # those of late that share its pages
        self._moves = 0  # which record of the header is the newest
        self._regions, self.stride = _regions(geometry)
        self._map_all()
        super().__init__(geometry, self._mapped_rows())

    @classmethod
    def create(cls, path: str, geometry: Geometry) -> Self:
        """Make a file that does not exist yet, without a page; on failure there is none."""
        _regions(geometry)  # an error before there is anything
        file = LockedFile.create(path, _FIRST_PAGE)
        try:
            file.write(header.describe(geometry, 0))
            return cls(file, geometry)
        except BaseException:
            file.remove()
            raise

    @classmethod
    def opened(cls, file: LockedFile, geometry: Geometry) -> Self:
        """Return the pages of a file, of which none has an owner yet."""
        if file.size < _FIRST_PAGE:
            raise ValueError(
                f"{file.path} is truncated: its pages begin behind {_FIRST_PAGE} bytes, and it has "
                f"{file.size}"
            )
        return cls(file, geometry)

    def claim(self, pages: Array) -> None:
        """Give each page an owner, as often as it occurs. The others up to the last are free."""
        self._used = int(pages.max()) + 1
        self._owners = np.bincount(pages).astype(np.int32)
        if self.is_writable:  # the next is taken from the end
            self._free = np.flatnonzero(self._owners == 0)[::-1].tolist()

    @property
    def is_writable(self) -> bool:
        """Whether pages may be written to."""
        return self.file.is_writable

    def let_forks_write(self) -> None:
        """Let them leave what may only be read."""
        if not self.is_writable:
            leave_file(self)

    def newest_forks(self) -> Forks:
        """Return those that a new one joins."""
        if self.forks.left is not None:
            self.forks = Forks()
        return self.forks

    def end_of(self, pages: int) -> int:
        """Return how long a file of so many pages is."""
        return _FIRST_PAGE + pages * self.stride

    def bytes_at(self, page: int, offset: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return what lies so many bytes behind a page's beginning."""
        return np.ndarray(shape, dtype, self._map, self.end_of(page) + offset)

    def read_header(self) -> tuple[Array, bool]:
        """Return what `write_header` was called with, or no numbers, and whether it ended."""
        size = header.record_size(3)
        both = self.file.read(2 * size, header.RECORDS)
        self._moves, numbers = header.newest((both[:size], both[size:]))
        return numbers, both[:size] == both[size:]

    def write_header(self, numbers: Array) -> None:
        """Write over both records, one after the other: whoever dies leaves one that is whole."""
        content = header.record(self._moves + 1, numbers)
        for number in range(2):
            self._put(header.RECORDS + number * len(content), content)
        self._moves += 1

    def _put(self, offset: int, content: bytes) -> None:
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
        self._room = min((len(self._map) - _FIRST_PAGE) // self.stride, MOST_PAGES)

    def _mapped_rows(self) -> Rows:
        return Rows(*(self._view(*region) for region in self._regions))

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self._room == 0:
            return np.empty((0, *shape), dtype)
        lengths = [*shape[1:], dtype.itemsize]
        strides = [math.prod(lengths[axis:]) for axis in range(len(shape))]
        whole = (self._room, *shape)
        return np.ndarray(whole, dtype, self._map, _FIRST_PAGE + offset, (self.stride, *strides))

    def _extend(self, needed: int) -> None:
        """Let the file be longer by a quarter, or by what is needed where the disk has no more."""
        before, generous = self.file.size, max(needed, self._used + self._used // 4)
        try:
            self.file.allocate(self.end_of(min(generous, MOST_PAGES)))
        except OSError:
            self.file.allocate(self.end_of(needed))
        try:
            self._map_all()
        except BaseException:
            self.file.shrink(before)
            raise
        # Who reads the shorter mapping may go on: both show the same bytes.
        self.rows = self._mapped_rows()

    def _have_used_more(self) -> None:
        """There is nothing to ask for."""


def _regions(geometry: Geometry) -> tuple[list[Region], int]:
    """Return offset, shape and type of what a page consists of, and how long it is."""
    assert geometry.page_size is not None
    found, end = [], 0
    for (_, *shape), dtype in Rows.forms(geometry, 1, geometry.page_size):
        found.append((end, tuple(shape), dtype))
        end += header.aligned(math.prod(shape) * dtype.itemsize)
    return found, end
