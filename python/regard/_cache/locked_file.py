"""A file that is open and locked: one process writes to it, or many read it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from typing import Self
from weakref import finalize


class LockedFile:
    """What a cache does with a file, apart from what stands in it."""

    def __init__(self, descriptor: int, path: str, *, is_writable: bool) -> None:
        self.path = path
        self._is_writable = is_writable
        self._descriptor = descriptor
        self._process = os.getpid()
        self._release = finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, path: str, size: int, *, may_exist: bool = False) -> Self:
        """Make a file of zeros; on failure there is none."""
        flag = os.O_TRUNC if may_exist else os.O_EXCL
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flag, 0o666)
        file = cls(descriptor, path, is_writable=True)
        try:
            _lock(descriptor, path, is_writable=True)
            file.allocate(size)
        except BaseException:
            file.remove()
            raise
        return file

    @classmethod
    def open(cls, path: str, *, is_writable: bool) -> Self:
        """Open a file that there is."""
        path = os.path.realpath(path)
        return cls(_open_locked(path, is_writable=is_writable), path, is_writable=is_writable)

    @property
    def is_writable(self) -> bool:
        """Whether it is ours to write to: a forked child's it is not."""
        return self._is_writable and os.getpid() == self._process

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return os.fstat(self._descriptor).st_size

    @property
    def permissions(self) -> int:
        """Who may read and write it."""
        return stat.S_IMODE(os.fstat(self._descriptor).st_mode)

    @permissions.setter
    def permissions(self, mode: int) -> None:
        os.fchmod(self._descriptor, mode)

    def read(self, count: int, offset: int = 0) -> bytes:
        """Return so many bytes, or fewer where it ends."""
        return os.pread(self._descriptor, count, offset)

    def write(self, content: bytes) -> None:
        """Write to its beginning, where there is room already."""
        os.pwrite(self._descriptor, content, 0)

    def allocate(self, size: int) -> None:
        """See to it that the disk has room for so many bytes, or leave the file as it is.

        The disk is full now, as an error, and not on writing, as a signal that kills.
        """
        before = self.size
        try:
            if size >= 2**63:  # which Python cannot ask for
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if self.size != before:  # part of it
                os.ftruncate(self._descriptor, before)
            reason = f"{error.strerror}, for a cache of {size} bytes"
            raise OSError(error.errno, reason, self.path) from None

    def shrink(self, size: int) -> None:
        """Give back what was allocated behind so many bytes."""
        os.ftruncate(self._descriptor, size)

    def mapped(self) -> mmap.mmap:
        """Return all of it as memory."""
        access = mmap.ACCESS_WRITE if self.is_writable else mmap.ACCESS_READ
        try:
            return mmap.mmap(self._descriptor, 0, access=access)
        except OSError as error:
            reason = f"{error.strerror}, to map {self.size} bytes into"
            raise OSError(error.errno, reason, self.path) from None

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)

    def rename(self, path: str) -> None:
        """Take the place of what is there, at once."""
        os.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        """Let there be no such file."""
        os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Unlock it. What is mapped stays for as long as somebody reads it."""
        if not self._release.alive:
            return
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
