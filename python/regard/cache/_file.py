"""Keys and values in a memory-mapped file."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from regard.cache import _header
from regard.cache._rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.cache._geometry import Geometry

    Array = NDArray[Any]


class FileSlots:
    """Slots that lie in a file, locked for as long as they are open: one writes, or many read."""

    def __init__(
        self, descriptor: int, path: str, geometry: Geometry, slots: int, *, is_writable: bool
    ) -> None:
        self.path: str | None = path
        self.is_writable = is_writable
        self._descriptor = descriptor
        self._name = path  # where the file lies until it is published
        self._batch = geometry.batch
        self._number = 0
        self._process = os.getpid()
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, 0, access=access)
        regions, _ = _header.regions(geometry, slots)
        self.rows = Rows(*(self._view(*region) for region in regions))
        self._release = finalize(self, os.close, descriptor)

    def _view(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._map, offset)

    @classmethod
    def create(cls, path: str, geometry: Geometry, slots: int) -> FileSlots:
        """Make a file that does not exist yet; on failure there is none."""
        return cls._make(path, geometry, slots, os.O_EXCL)

    @classmethod
    def _make(cls, path: str, geometry: Geometry, slots: int, flag: int) -> FileSlots:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flag
        descriptor = os.open(path, flags, 0o666)
        try:
            _lock(descriptor, path, is_writable=True)
            _, size = _header.regions(geometry, slots)
            try:
                if size >= 2**63:  # which Python cannot ask for
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
                # The disk is full now, as an error, and not on writing, as a signal that kills.
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                reason = f"{error.strerror}, on making a cache of {size} bytes"
                raise OSError(error.errno, reason, path) from None
            os.pwrite(descriptor, _header.describe(geometry, slots), 0)
            return cls(descriptor, path, geometry, slots, is_writable=True)
        except BaseException:
            os.unlink(path)
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str, *, is_writable: bool) -> tuple[FileSlots, Geometry, Array, Array]:
        """Return the slots of a file, its geometry, lengths and first kept positions."""
        path = os.path.realpath(path)
        descriptor = _open_locked(path, is_writable=is_writable)
        try:
            size = os.fstat(descriptor).st_size
            geometry, slots = _header.read_description(os.pread(descriptor, 512, 0), path)
            _, wanted = _header.regions(geometry, slots)
            if size != wanted:
                what = "is truncated" if size < wanted else "has bytes behind its end"
                raise ValueError(f"{path} {what}: it should have {wanted} bytes and has {size}")
            start = os.pread(descriptor, _header.data_offset(geometry.batch), 0)
            number, (lengths, first) = _header.read_record(start, geometry, slots, path)
            if is_writable:
                os.posix_fallocate(descriptor, 0, size)  # a copy may have been made with holes
            opened = cls(descriptor, path, geometry, slots, is_writable=is_writable)
            opened._number = number
            return opened, geometry, lengths, first
        except BaseException:
            os.close(descriptor)
            raise

    def commit(self, lengths: Array, first: Array) -> None:
        """Write the lengths over the older record."""
        self._number += 1
        content = _header.record(self._number, lengths, first)
        at = _header.record_offset(self._batch, self._number % 2)
        self._map[at : at + len(content)] = content

    def successor(self, geometry: Geometry, slots: int) -> FileSlots:
        """Make a file beside this one. What is left of one that died growing is overwritten."""
        assert self.path is not None
        made = self._make(f"{self.path}.growing", geometry, slots, os.O_TRUNC)
        os.fchmod(made._descriptor, stat.S_IMODE(os.fstat(self._descriptor).st_mode))
        made.path = self.path
        return made

    def publish(self) -> None:
        """Put this file in the place of its predecessor, at once, as soon as all of it is safe."""
        assert self.path is not None
        self.flush()
        os.fsync(self._descriptor)
        os.rename(self._name, self.path)
        self._name = self.path

    def discard(self) -> None:
        """Remove the file."""
        os.unlink(self._name)
        self.close()

    def flush(self) -> None:
        """Write all that is mapped to the disk."""
        if self.is_writable:
            self._map.flush()

    def close(self) -> None:
        """Unlock the file. It is unmapped as soon as nobody reads it any more."""
        # The mapping has the file open too, under the same lock. So has a forked child, which has
        # not locked it and does not unlock it either.
        if os.getpid() == self._process:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._release()


def _open_locked(path: str, *, is_writable: bool) -> int:
    # Without O_NONBLOCK, opening a pipe would wait for its other end.
    flags = (os.O_RDWR if is_writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    while True:
        descriptor = os.open(path, flags)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path} is no cache of regard: it is no plain file")
            _lock(descriptor, path, is_writable=is_writable)
            # It may have been replaced by a larger one between opening and locking.
            if os.path.samestat(found, os.stat(path)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: str, *, is_writable: bool) -> None:
    kind = fcntl.LOCK_EX if is_writable else fcntl.LOCK_SH
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        others = "it is open elsewhere" if is_writable else "it is open for writing elsewhere"
        reason = f"{others}, and a cache's file has one writer or many readers"
        raise BlockingIOError(error.errno, reason, path) from None
