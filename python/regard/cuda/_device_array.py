"""Element types, and device arrays for callers without PyTorch or CuPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import CUDA
from regard._arguments.numbers import count
from regard.cuda._status import check_available, module
from regard.cuda._streams import LEGACY, normal, stream_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard import _cuda

# The element types that arguments of a call may have, with their DLPack codes and bits.
DLPACK = {
    "bool": (6, 8),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "int32": (0, 32),
    "int64": (0, 64),
}
ITEM_BYTES = {element: bits // 8 for element, (_, bits) in DLPACK.items()}


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides[: len(shape)]))


class DeviceArray:
    """A contiguous array in the memory of a CUDA device.

    `to_device` copies a NumPy array to the device, and `to_numpy` copies it back. PyTorch, CuPy,
    JAX and Numba read it without a copy through ``__dlpack__`` or ``__cuda_array_interface__``.

    Attributes
    ----------
    shape : tuple of int
        The sizes of the axes.
    dtype : dtype
        The NumPy type of the elements.
    device : int
        The number of the device.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.cuda
    >>> if regard.cuda.is_available():
    ...     array = regard.cuda.to_device(np.ones((2, 3), np.float32))
    ...     assert array.to_numpy().sum() == 6
    """

    __slots__ = ("__weakref__", "buffer", "element", "shape", "steps")

    def __init__(
        self,
        buffer: _cuda.Buffer,
        element: str,
        shape: tuple[int, ...],
        steps: tuple[int, ...] | None = None,
    ) -> None:
        self.buffer = buffer
        self.element = element
        self.shape = shape
        self.steps = dense_strides(shape) if steps is None else steps  # in elements

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements. The ml_dtypes package provides bfloat16."""
        if self.element != "bfloat16":
            return np.dtype(self.element)
        try:
            import ml_dtypes
        except ImportError:
            raise RuntimeError(
                "NumPy has no bfloat16 without the ml_dtypes package: pip install ml_dtypes"
            ) from None
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16

    @property
    def device(self) -> int:
        """The number of the device."""
        return self.buffer.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.element}, device={self.device})"

    def to_numpy(self) -> NDArray[Any]:
        """Return a copy in host memory, after all work on the array is done.

        Returns
        -------
        ndarray
            Has the same shape and type.

        Raises
        ------
        RuntimeError
            If CUDA reports an error, or the array is bfloat16 and ml_dtypes is not installed.
        """
        host = np.empty(self.shape, self.dtype)
        if host.size:
            self.buffer.order(LEGACY)
            module().download(self.buffer.address, self.device, _bytes(host), LEGACY)
        return host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.element == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16: use __dlpack__")
        self.buffer.order(LEGACY)
        self.buffer.exported()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.buffer.address, False),
            "strides": None,
            "stream": LEGACY,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on device {self.__dlpack_device__()}, not {dl_device}")
        if copy:
            raise BufferError("the array is not copied for DLPack: pass copy=None or copy=False")
        if stream != -1:  # -1 requests no synchronization
            self.buffer.order(normal(stream or LEGACY))
        self.buffer.exported()
        return module().export_tensor(
            self.buffer,
            self.buffer.address,
            self.device,
            *DLPACK[self.element],
            self.shape,
            self.steps,
            max_version is not None and max_version[0] >= 1,
        )


def to_device(array: ArrayLike, *, device: SupportsIndex = 0, stream: Any = None) -> DeviceArray:
    """Copy a host array to a CUDA device, through pinned memory.

    Parameters
    ----------
    array : array_like
        Bool, int32, int64, float16, bfloat16 (from the ml_dtypes package), float32 or float64.
    device : int, default 0
        The number of the device.
    stream : int or stream, optional
        The stream of the copy: an integer, or a PyTorch, CuPy, Numba or cuda.core stream. Default:
        the legacy default stream.

    Returns
    -------
    DeviceArray
        Has the same shape and type. `array` may be modified immediately after the call.

    Raises
    ------
    TypeError
        If `array` has another type.
    MemoryError
        If the device does not have enough memory.
    RuntimeError
        If CUDA is not available, or reports an error.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.cuda
    >>> if regard.cuda.is_available():
    ...     assert regard.cuda.to_device(np.zeros((2, 3), np.float16)).shape == (2, 3)
    """
    host = as_array("array", array)
    if host.dtype.name not in ITEM_BYTES:
        raise TypeError(f"array must be of {', '.join(ITEM_BYTES)}, got {host.dtype}")
    number = count("device", device)
    check_available()
    handle = LEGACY if stream is None else stream_of(stream, None)
    return copied(host, number, handle)


def copied(host: NDArray[Any], device: int, stream: int) -> DeviceArray:
    """Return a copy of a host array on a device, made in the order of a stream."""
    dense = np.ascontiguousarray(host, host.dtype.newbyteorder("="))
    buffer = module().Buffer(dense.nbytes, device, stream)
    if dense.size:
        buffer.upload(_bytes(dense), stream)
    return DeviceArray(buffer, host.dtype.name, host.shape)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of an array, since not every element type supports buffers."""
    return array.reshape(-1).view(np.uint8)
