"""Read a file without requesting more bytes than it contains."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def open_plain(path: str) -> BinaryIO:
    """Open a file for reading, or raise ValueError if it is a device or a pipe.

    Opening a pipe would wait for the other end, and a device has no size.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError(f"{path}: is not a plain file, but a device, a pipe or a socket")
    return open(path, "rb")


class BoundedFile:
    """Little-endian values of a file, each checked against the file's size before it is read.

    A damaged file may contain any number in place of a length. A length is used only after a check
    that the file contains that many bytes, so no length can request more memory than the file size.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def refuse(self, reason: str) -> NoReturn:
        """Raise a ValueError that names the file."""
        raise ValueError(f"{self.path}: {reason}")

    def require(self, count: int, what: str) -> None:
        """Raise ValueError unless the file has `count` more bytes."""
        if count > self.size - self.position:
            self.refuse(
                f"{what} needs {count} bytes at offset {self.position}, but the file ends at "
                f"{self.size}"
            )

    def take(self, count: int, what: str) -> bytes:
        """Read `count` bytes."""
        self.require(count, what)
        data = self._file.read(count)
        if len(data) != count:
            self.refuse(f"the file became shorter while {what} was read")
        self.position += count
        return data

    def number(self, code: str, what: str) -> Any:
        """Read one number of a `struct` code."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code), what))[0]

    def text(self, what: str) -> str:
        """Read a length, and UTF-8 text of that many bytes."""
        data = self.take(self.number("Q", f"the length of {what}"), what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            self.refuse(f"{what} is not UTF-8: {error}")

    def array(self, start: int, dtype: np.dtype[Any], count: int, what: str) -> NDArray[Any]:
        """Read `count` elements that begin at byte `start`."""
        self._file.seek(start)
        self.position = start
        self.require(count * dtype.itemsize, what)
        array = np.fromfile(self._file, dtype, count)
        if array.size != count:
            self.refuse(f"the file became shorter while {what} was read")
        return array.astype(dtype.newbyteorder("="), copy=False)
