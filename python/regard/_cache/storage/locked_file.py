"""A file that is open and locked: one process writes to it, or many read it."""

from __future__ import annotations

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
    """What a cache does with a file, apart from what stands in it."""

    def __init__(self, file: FileIO, path: str, *, is_writable: bool) -> None:
        self.path = path
        self._is_writable = is_writable
        self._file = file
        self._process = os.getpid()
        self._release = finalize(self, file.close)

    @classmethod
    def create(cls, path: str, size: int) -> Self:
        """Make a file of zeros that does not exist yet; on failure there is none."""
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
        """Open a file that exists."""
        path = os.path.realpath(path)
        if not (stat.S_ISREG(mode := os.stat(path).st_mode) or stat.S_ISDIR(mode)):
            # Opening a pipe would wait for its other end.
            raise ValueError(f"{path} is not a cache of regard: it is not a plain file")
        opened = FileIO(path, "r+" if is_writable else "r")
        file = cls(opened, path, is_writable=is_writable)
        _lock(file.descriptor, path, is_writable=is_writable)
        return file

    @property
    def descriptor(self) -> int:
        """The operating system's number for it."""
        return self._file.fileno()

    @property
    def is_writable(self) -> bool:
        """Whether it may be written to: a child that was forked may not write."""
        return self._is_writable and os.getpid() == self._process

    @property
    def is_foreign(self) -> bool:
        """Whether the process that this one was forked from writes to it."""
        return self._is_writable and os.getpid() != self._process

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return os.fstat(self.descriptor).st_size

    def read(self, count: int, offset: int = 0) -> bytes:
        """Return this many bytes, or fewer where it ends."""
        return system.read_at(self.descriptor, count, offset)

    def write(self, content: bytes) -> None:
        """Write to its beginning, where there is room already."""
        system.write_at(self.descriptor, content, 0)

    def allocate(self, size: int) -> None:
        """Make sure that the disk has room for this many bytes, or leave the file as it is.

        A full disk is an error now, and not a fatal signal when memory that is mapped is written.
        """
        before = self.size
        try:
            if size >= 2**63:  # which Python cannot ask for
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            system.allocate_on_disk(self.descriptor, size)
        except OSError as error:
            if self.size != before:  # part of it
                os.ftruncate(self.descriptor, before)
            reason = f"{error.strerror}, for a cache of {size} bytes"
            raise OSError(error.errno, reason, self.path) from None

    def mapped(self) -> mmap.mmap:
        """Return all of it as memory."""
        try:
            return mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_WRITE)
        except OSError as error:
            raise self.cannot_map(error, self.size) from None

    def first_page(self) -> mmap.mmap:
        """Return its beginning as memory that cannot be written to."""
        return mmap.mmap(self.descriptor, 1, access=mmap.ACCESS_READ)

    def check_length(self, memory: mmap.mmap, size: int) -> None:
        """Raise OSError if the file, of which `memory` is a mapping, is shorter than `size` bytes.

        The system ends a process that reads or writes mapped memory beyond the file's end. A lock
        does not stop a program that does not ask for it from truncating the file.
        """
        # The mapping has a descriptor of its own, so another thread may close the file meanwhile.
        if (left := memory.size()) < size:
            reason = f"another program has truncated it from {size} to {left} bytes"
            raise OSError(errno.EIO, reason, self.path)

    def cannot_map(self, error: OSError, size: int) -> OSError:
        """Return an error that says which file cannot be mapped, and how much of it."""
        return OSError(error.errno, f"{error.strerror}, to map {size} bytes into", self.path)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self.descriptor)

    def remove(self) -> None:
        """Delete the file, unless another one lies at its path by now, and close it."""
        with suppress(OSError):
            is_own = os.path.samestat(os.fstat(self.descriptor), os.stat(self.path))
            if sys.platform == "win32":
                self.close()  # an open file cannot be deleted there
            if is_own:
                os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Unlock it. What is mapped stays for as long as it is used."""
        if not self._release.alive:
            return
        # The mapping has the file open too, under the same lock. So has a forked child, which has
        # not locked it and does not unlock it either.
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
