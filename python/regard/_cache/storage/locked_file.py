"""An open, locked file with one writing process or many reading processes."""

from __future__ import annotations

import atexit  # noqa: F401 (weakref.finalize imports it at its first use)
import errno
import mmap
import os
import stat
import sys
from contextlib import suppress
from io import FileIO
from typing import Self
from weakref import finalize

from regard._cache.storage import system


class LockedFile:
    """The file of a cache, independent of its content."""

    def __init__(self, file: FileIO, path: str, *, is_writable: bool) -> None:
        self.path = path
        self._is_writable = is_writable
        self._file = file
        self._process = os.getpid()
        self._release = finalize(self, file.close)

    @classmethod
    def create(cls, path: str, size: int) -> Self:
        """Create a new file of zeros; on failure, no file is left."""
        try:
            opened = FileIO(path, "x+")
        except FileExistsError as error:
            if os.path.isdir(path):
                raise
            reason = f"{error.strerror}, and KVCache.open(path) continues the cache in it"
            raise FileExistsError(error.errno, reason, path) from None
        file = cls(opened, path, is_writable=True)
        try:
            _lock(file.descriptor, path, is_writable=True)
            file.allocate(size)
        except BaseException:
            file.remove()
            raise
        return file

    @classmethod
    def open(cls, path: str, *, is_writable: bool) -> Self:
        """Open an existing file."""
        path = os.path.realpath(path)
        if not (stat.S_ISREG(mode := os.stat(path).st_mode) or stat.S_ISDIR(mode)):
            # Opening a pipe would wait for its other end.
            raise ValueError(f"{path} is not a regard cache: it is not a plain file")
        opened = FileIO(path, "r+" if is_writable else "r")
        file = cls(opened, path, is_writable=is_writable)
        _lock(file.descriptor, path, is_writable=is_writable)
        return file

    @property
    def descriptor(self) -> int:
        """The file descriptor."""
        return self._file.fileno()

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the file, which a forked child may not."""
        return self._is_writable and os.getpid() == self._process

    @property
    def is_foreign(self) -> bool:
        """Whether the parent process, from which this one was forked, writes to the file."""
        return self._is_writable and os.getpid() != self._process

    @property
    def size(self) -> int:
        """Number of bytes in the file."""
        return os.fstat(self.descriptor).st_size

    def read(self, count: int, offset: int = 0) -> bytes:
        """Return this many bytes, or fewer at the end of the file."""
        return system.read_at(self.descriptor, count, offset)

    def write(self, content: bytes, offset: int = 0) -> None:
        """Write to a file that is already allocated."""
        system.write_at(self.descriptor, content, offset)

    def allocate(self, size: int) -> None:
        """Allocate this many bytes on the disk, or leave the file as it is.

        A full disk then raises an error now, instead of a fatal signal when mapped memory is
        written.
        """
        before = self.size
        try:
            if size >= 2**63:  # Python cannot request it
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            system.allocate_on_disk(self.descriptor, size)
        except OSError as error:
            if self.size != before:  # partly allocated
                os.ftruncate(self.descriptor, before)
            reason = f"{error.strerror}, for a cache of {size} bytes"
            raise OSError(error.errno, reason, self.path) from None

    def mapped(self) -> mmap.mmap:
        """Return the whole file as mapped memory."""
        try:
            return mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_WRITE)
        except OSError as error:
            raise self.cannot_map(error, self.size) from None

    def first_page(self) -> mmap.mmap:
        """Return the beginning of the file as read-only memory."""
        return mmap.mmap(self.descriptor, 1, access=mmap.ACCESS_READ)

    def check_length(self, memory: mmap.mmap, size: int) -> None:
        """Raise OSError if the file, of which `memory` is a mapping, is shorter than `size` bytes.

        The system ends a process that reads or writes mapped memory beyond the file's end. A
        program that ignores the lock can truncate the file.
        """
        # The mapping has its own descriptor, so another thread may close the file meanwhile.
        if (left := memory.size()) < size:
            reason = f"another program has truncated it from {size} to {left} bytes"
            raise OSError(errno.EIO, reason, self.path)

    def cannot_map(self, error: OSError, size: int) -> OSError:
        """Return an error that names the file and the number of bytes that cannot be mapped."""
        return OSError(error.errno, f"{error.strerror}, to map {size} bytes into", self.path)

    def sync(self) -> None:
        """Wait until the written data is on the disk."""
        os.fsync(self.descriptor)

    def remove(self) -> None:
        """Delete the file, unless its path now refers to another file, and close it."""
        with suppress(OSError):
            is_own = os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
            if sys.platform == "win32":
                self.close()  # Windows does not delete open files
            if is_own:
                os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Unlock and close the file. Mapped memory remains valid while it is used."""
        if not self._release.alive:
            return
        # The mapping keeps the file open too, under the same lock. So does a forked child, which
        # has not locked the file and does not unlock it either.
        if os.getpid() == self._process:
            system.unlock(self.descriptor)
        self._release()


def _lock(descriptor: int, path: str, *, is_writable: bool) -> None:
    try:
        system.lock(descriptor, is_exclusive=is_writable)
    except BlockingIOError as error:
        others = "it is open elsewhere" if is_writable else "it is open for writing elsewhere"
        reason = f"{others}, and a cache's file has one writer or many readers"
        raise BlockingIOError(error.errno, reason, path) from None
