"""Operating system calls of caches: locks, disk space, and memory."""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes
else:
    import fcntl
    import resource

# Without this flag, Linux counts mapped memory as memory that a forked child may need, and fork
# fails. Python names the flag from 3.13 on; this is its number on x86-64 and AArch64.
_WITHOUT_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0


if sys.platform == "win32":
    # Windows forbids reading and writing locked bytes, so the lock is on a byte beyond the end of
    # any file.
    _FAIL_IMMEDIATELY, _EXCLUSIVE = 1, 2
    _LOCK_VIOLATION = 33
    _BEYOND = 2**62

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _place = _Overlapped(None, None, 0, _BEYOND >> 32, None)

    def lock(descriptor: int, *, is_exclusive: bool) -> None:
        """Lock an open file, or raise BlockingIOError if another process has it locked."""
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        kind = _FAIL_IMMEDIATELY | (_EXCLUSIVE if is_exclusive else 0)
        if not _kernel.LockFileEx(handle, kind, 0, 1, 0, ctypes.byref(_place)):
            code = ctypes.get_last_error()
            error = ctypes.WinError(code)
            raise BlockingIOError(*error.args) if code == _LOCK_VIOLATION else error

    def unlock(descriptor: int) -> None:
        """Unlock an open file."""
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        _kernel.UnlockFileEx(handle, 0, 1, 0, ctypes.byref(_place))

    def read_at(descriptor: int, count: int, offset: int) -> bytes:
        """Return this many bytes of a file, or fewer at its end."""
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, count)

    def write_at(descriptor: int, content: bytes, offset: int) -> None:
        """Write to a file at an offset."""
        os.lseek(descriptor, offset, os.SEEK_SET)
        os.write(descriptor, content)

    def free_address_space() -> int:
        """Return 0: mapped memory counts as used from the beginning."""
        return 0

    def mapped_memory(size: int) -> Any:
        """Return zeroed memory, or raise OSError or OverflowError."""
        return mmap.mmap(-1, size)

else:

    def lock(descriptor: int, *, is_exclusive: bool) -> None:
        """Lock an open file, or raise BlockingIOError if another process has it locked."""
        kind = fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)

    def unlock(descriptor: int) -> None:
        """Unlock an open file."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def read_at(descriptor: int, count: int, offset: int) -> bytes:
        """Return this many bytes of a file, or fewer at its end."""
        return os.pread(descriptor, count, offset)

    def write_at(descriptor: int, content: bytes, offset: int) -> None:
        """Write to a file at an offset."""
        os.pwrite(descriptor, content, offset)

    def free_address_space() -> int:
        """Return the bytes that unused mappings may have: the memory size, or 0 if they count."""
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            return 0
        try:
            # Not open() here: Ctrl-C before `with` has begun would leave the file open.
            if Path("/proc/sys/vm/overcommit_memory").read_bytes().strip() == b"2":
                return 0
        except OSError:
            return 0
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def mapped_memory(size: int) -> Any:
        """Return zeroed memory, which the system provides on first use, or raise OSError."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _WITHOUT_RESERVE
        return mmap.mmap(-1, size, flags=flags)


def ask_for_huge_pages(memory: mmap.mmap) -> None:
    """Request huge pages, which only some systems provide."""
    if sys.platform == "linux":
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def allocate_on_disk(descriptor: int, size: int) -> None:
    """Extend a file to `size` bytes, all allocated on the disk, or raise OSError.

    If the system cannot allocate the bytes, zeros are written.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros, at = bytes(1 << 20), os.fstat(descriptor).st_size
    while at < size:
        write_at(descriptor, zeros[: size - at], at)
        at = os.fstat(descriptor).st_size
