"""Slots in a memory-mapped file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._cache import header
from regard._cache.locked_file import LockedFile
from regard._cache.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]


class FileSlots:
    """Slots that lie in a file, locked for as long as they are open."""

    def __init__(self, file: LockedFile, path: str, geometry: Geometry, slots: int) -> None:
        self.path: str | None = path  # where the file lies, or will as soon as it is published
        self._file = file
        self._batch = geometry.batch
        self._number = 0
        self._map = file.mapped()
        regions, _ = header.regions(geometry, slots)
        self.rows = Rows(*(self._view(*region) for region in regions))

    @property
    def is_writable(self) -> bool:
        """Whether slots may be written to."""
        return self._file.is_writable

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._map, offset)

    @classmethod
    def create(cls, path: str, geometry: Geometry, slots: int) -> FileSlots:
        """Make a file that does not exist yet; on failure there is none."""
        return cls._make(path, path, geometry, slots)

    @classmethod
    def _make(cls, name: str, path: str, geometry: Geometry, slots: int) -> FileSlots:
        _, size = header.regions(geometry, slots)
        file = LockedFile.create(name, size, may_exist=name != path)
        try:
            file.write(header.describe(geometry, slots))
            return cls(file, path, geometry, slots)
        except BaseException:
            file.remove()
            raise

    @classmethod
    def opened(
        cls, file: LockedFile, geometry: Geometry, slots: int
    ) -> tuple[FileSlots, Array, Array]:
        """Return the slots of a file, lengths and first kept positions."""
        size, path = file.size, file.path
        _, wanted = header.regions(geometry, slots)
        if size != wanted:
            what = "is truncated" if size < wanted else "has bytes behind its end"
            raise ValueError(f"{path} {what}: it should have {wanted} bytes and has {size}")
        start = file.read(header.data_offset(geometry.batch))
        number, (lengths, first) = header.read_record(start, geometry, slots, path)
        if file.is_writable:
            file.allocate(size)  # a copy may have been made with holes
        slots_of_file = cls(file, path, geometry, slots)
        slots_of_file._number = number
        return slots_of_file, lengths, first

    def commit(self, lengths: Array, first: Array) -> None:
        """Write the lengths over the older record."""
        number = self._number + 1
        content = header.record(number, lengths, first)
        at = header.record_offset(self._batch, number % 2)
        self._map[at : at + len(content)] = content
        self._number = number

    def successor(self, geometry: Geometry, slots: int) -> FileSlots:
        """Make a file beside this one. What is left of one that died growing is overwritten."""
        assert self.path is not None
        made = self._make(f"{self.path}.growing", self.path, geometry, slots)
        made._file.permissions = self._file.permissions
        return made

    def publish(self) -> None:
        """Put this file in the place of its predecessor, at once, as soon as all of it is safe."""
        assert self.path is not None
        self.flush()
        self._file.sync()
        self._file.rename(self.path)

    def discard(self) -> None:
        """Remove the file."""
        self._file.remove()

    def flush(self) -> None:
        """Write all that is mapped to the disk."""
        if self.is_writable:
            self._map.flush()

    def close(self) -> None:
        """Unlock the file. It is unmapped as soon as nobody reads it any more."""
        self._file.close()
