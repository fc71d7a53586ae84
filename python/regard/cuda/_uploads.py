"""Upload a call's small host arrays to the device in one allocation and one copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard.cuda._status import module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard import _cuda

_ALIGNMENT = 16


class Uploads:
    """A collection of arrays that are copied together."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint8]] = []
        self._bytes = 0
        self._buffer: _cuda.Buffer | None = None

    def add(self, array: NDArray[Any]) -> int:
        """Add a contiguous array, and return its offset from the address that `copy` returns."""
        at = self._bytes
        part = array.reshape(-1).view(np.uint8)
        padding = -part.size % _ALIGNMENT
        self._parts += [part, np.zeros(padding, np.uint8)]
        self._bytes += part.size + padding
        return at

    def copy(self, device: int, stream: int) -> int:
        """Copy all arrays in stream order, and return the address of the first array."""
        if not self._bytes:
            return 0
        self._buffer = module().Buffer(self._bytes, device, stream)
        self._buffer.upload(np.concatenate(self._parts), stream)
        return self._buffer.address

    def release(self, stream: int) -> None:
        """Release the memory as soon as a stream has finished its work."""
        if self._buffer is not None:
            self._buffer.used_by(stream)
            self._buffer = None
