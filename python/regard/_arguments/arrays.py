"""Convert the arrays that callers pass to arrays that the kernels can read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.foreign import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Array = NDArray[Any]
    Integers = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Bytes = NDArray[np.uint8]
    DType = np.dtype[Any]
    Place = tuple[int | slice, ...]

FloatArray = np.ndarray[Any, np.dtype[np.float32]] | np.ndarray[Any, np.dtype[np.float64]]

_COMPUTE_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
_STORED_TYPES = ("float16", "bfloat16", "float32", "float64")
_PLAIN_STORED_TYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16))


_MOST_LETTERS = 100


def as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return an array, or raise TypeError or ValueError."""
    if value is None:
        raise TypeError(f"{name} must be an array, got None")
    # np.ma would import the module, and without it there is no masked array.
    masked = sys.modules.get("numpy.ma")
    if isinstance(value, getattr(masked, "MaskedArray", ())):  # another thread may be importing it
        raise TypeError(
            f"{name} must be a plain array, got a masked array, whose mask would be ignored; "
            "pass .filled(...) and a mask argument"
        )
    value = readable(name, value)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array or a regular nested list: {error}") from None


def _compute_type(name: str, array: NDArray[Any]) -> np.dtype[Any]:
    native = array.dtype.newbyteorder("=")
    if native in _COMPUTE_TYPES:
        return native
    if array.dtype.kind in "biu":
        return np.dtype(np.float64)
    raise TypeError(f"{name} must be an array of float32 or float64, got {array.dtype}")


def as_native(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array`, or a copy if its type, alignment or strides cannot be read as they are."""
    is_same = array.dtype == dtype and array.dtype.byteorder == dtype.byteorder
    return array if is_same and is_aligned(array) else converted(array, dtype)


def converted(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return a copy of an array in another type.

    Axes of stride 0, as `numpy.broadcast_to` makes them, keep this stride. The copy is then
    read-only, and as small as the memory of the array.
    """
    sizes = tuple(1 if step == 0 else n for n, step in zip(array.shape, array.strides, strict=True))
    if sizes == array.shape:
        return array.astype(dtype)
    distinct = array[tuple(slice(min(own, n)) for own, n in zip(sizes, array.shape, strict=True))]
    return np.broadcast_to(distinct.astype(dtype), array.shape)


def is_aligned(array: NDArray[Any]) -> bool:
    """Return whether an array is aligned and its strides are multiples of its item size."""
    return array.flags.aligned and all(step % array.itemsize == 0 for step in array.strides)


def as_float_arrays(**arguments: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Convert named arguments to arrays of their common type, float32 or float64.

    Integers, bools and lists of them become float64, as in NumPy; other byte orders become native.
    Arrays that need no conversion are returned unchanged.
    """
    arrays = {name: as_array(name, value) for name, value in arguments.items()}
    dtype = np.result_type(*(_compute_type(name, array) for name, array in arrays.items()))
    return tuple(as_native(array, dtype) for array in arrays.values())


def as_lse(value: ArrayLike) -> NDArray[Any]:
    """Return the `lse` of a forward call, or raise TypeError.

    No call returns integers, and 16 bits are too few to compute weights from.
    """
    array = as_array("lse", value)
    native = array.dtype.newbyteorder("=")
    if native not in _COMPUTE_TYPES:
        raise TypeError(
            f"lse must be float32 or float64, as the forward call returned it, got {array.dtype}"
        )
    return as_native(array, native)


def as_factors(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Convert the operands of a product to arrays of their common type.

    A `b` of float16 or bfloat16 keeps its type.
    """
    right = as_array("b", b)
    if right.dtype.name not in ("float16", "bfloat16"):
        if right.dtype.kind not in "biu" and right.dtype.newbyteorder("=") not in _COMPUTE_TYPES:
            raise TypeError(
                "b must be an array of float16, bfloat16, float32 or float64, or weight.T of a "
                f"QuantizedWeight, got {right.dtype}"
            )
        left, right = as_float_arrays(a=a, b=right)
        return left, right
    (left,) = as_float_arrays(a=a)
    right = stored("b", right)
    return left, as_native(right, right.dtype)


def stored(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return `value` as an array of one of the storage types, or raise TypeError or ValueError.

    The storage types are float16, bfloat16 (from the ml_dtypes package), float32 and float64.
    Integers, bools and lists of them become float64, as in NumPy; other byte orders become native.
    """
    array = as_array(name, value)
    if array.dtype in _PLAIN_STORED_TYPES:  # faster than asking for a dtype's name
        # The kernels do not recognize an explicit byte order, "<f4", as the native one.
        is_plain = array.dtype.byteorder == "="
        return array if is_plain else array.view(array.dtype.newbyteorder("="))
    if array.dtype.kind in "biu":
        return converted(array, np.float64)
    if array.dtype.name not in _STORED_TYPES:
        raise TypeError(
            f"{name} must be an array of float16, bfloat16, float32 or float64, got {array.dtype}"
        )
    native = array.dtype.newbyteorder("=")
    return array.view(native) if array.dtype.isnative else converted(array, native)


def as_stored_arrays(**arguments: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Convert named arguments to arrays that attention reads, and keep their storage types.

    Arrays that need no conversion are returned unchanged.
    """
    arrays = (stored(name, value) for name, value in arguments.items())
    return tuple(as_native(array, array.dtype) for array in arrays)


def result_type(dtypes: Iterable[DType]) -> DType:
    """Return NumPy's result type of `dtypes`, and float32 for float16 with bfloat16.

    NumPy refuses to mix float16 and bfloat16.
    """
    distinct = set(dtypes)
    names = {dtype.name for dtype in distinct}
    if {"float16", "bfloat16"} <= names:
        distinct.add(np.dtype(np.float32))
        distinct = {dtype for dtype in distinct if dtype.itemsize > 2}
    return np.result_type(*distinct)


def compute_type(*dtypes: DType) -> DType:
    """Return float64 if any of `dtypes` is float64, else float32."""
    return np.dtype(np.float64 if np.dtype(np.float64) in dtypes else np.float32)


def as_computed(derivative: NDArray[Any], *inputs: NDArray[Any]) -> NDArray[Any]:
    """Return a gradient or a tangent in a type that is not wider than the call's arithmetic."""
    is_wider = derivative.dtype.itemsize > compute_type(*(each.dtype for each in inputs)).itemsize
    return converted(derivative, np.float32) if is_wider else derivative


def stand_in(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros that use no memory, for checks of the shape and the type."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def is_list_of_arrays(value: Any) -> bool:
    """Return whether an argument is a list or a tuple of arrays, such as one for each layer.

    A nested list of numbers does not count.
    """
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(hasattr(each, "__array__") and np.ndim(each) >= 2 for each in value)


def part_at(array: Any, place: Place) -> Any:
    """Return a part of an array that broadcasts to some axes, as a view.

    `place` contains an index or a slice for each axis. Axes are aligned at the end, and an axis of
    length 1 applies to every index.
    """
    index = place[max(len(place) - array.ndim, 0) :]
    if 1 in array.shape:
        sizes = array.shape[array.ndim - len(index) :]
        index = tuple(
            (slice(None) if isinstance(at, slice) else 0) if size == 1 else at
            for at, size in zip(index, sizes, strict=True)
        )
    return array[(..., *index)]


def is_floating(dtype: DType) -> bool:
    """Return whether a dtype is one of NumPy's floating-point types or bfloat16."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def dtype_of(name: str, dtype: DTypeLike, needed: str) -> DType:
    """Return a dtype, or raise a TypeError that names the types `needed`."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be {needed}, got {shown(dtype)}") from None


def floating(name: str, dtype: DTypeLike) -> DType:
    """Return a floating-point dtype, or raise TypeError."""
    wanted = dtype_of(name, dtype, "floating-point")
    if not is_floating(wanted):
        raise TypeError(f"{name} must be floating-point, got {wanted}")
    return wanted


def single_or_double(name: str, dtype: DTypeLike) -> DType:
    """Return the dtype float32 or float64, or raise TypeError."""
    wanted = dtype_of(name, dtype, "float32 or float64")
    if wanted not in _COMPUTE_TYPES:
        raise TypeError(f"{name} must be float32 or float64, got {wanted}")
    return wanted


def check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...], meaning: str) -> None:
    """Raise ValueError unless an array has the given shape, which `meaning` describes."""
    if array.shape != shape:
        raise ValueError(
            f"{name} must have the shape of {meaning}, {shape}, got shape {array.shape}"
        )


def check_out(name: str, out: Any, dtype: DType, shape: tuple[int, ...] | None = None) -> None:
    """Raise TypeError or ValueError unless results of a type and shape can be written to `out`."""
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        kind = f"an array of {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"{name} must be an array of {dtype}, got {kind}")
    if shape is not None and out.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError(f"{name} must be writeable, got a read-only array")
    if repeats_an_element(out.shape, out.strides, out.itemsize):
        raise ValueError(
            f"{name} must have a separate element for every result, got strides {out.strides}"
        )


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether arrays of a shape broadcast to the shape `target`."""
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def shares_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return whether two arrays share an element, or True if that is too hard to decide."""
    try:
        return np.shares_memory(a, b, max_work=100000)  # type: ignore[arg-type,unused-ignore]
    except np.exceptions.TooHardError:
        return True


def refuse_overlap(
    name: str,
    out: Any,
    other_name: str,
    other: Any,
    reason: str = "inputs are not changed; pass another array",
) -> None:
    """Raise ValueError if `out` and another argument are arrays that share memory."""
    if isinstance(out, np.ndarray) and isinstance(other, np.ndarray) and shares_memory(out, other):
        raise ValueError(f"{name} must not overlap {other_name}: {reason}")


def repeats_an_element(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Return whether two indices may refer to one element, which is `size` steps wide."""
    if 0 in shape:
        return False
    steps = sorted((abs(step), n) for n, step in zip(shape, strides, strict=True) if n > 1)
    reach = size
    for step, n in steps:
        if step < reach:
            return True
        reach += step * (n - 1)
    return False


def shown(value: Any) -> str:
    """Return a value as text for a message: arrays by their type and shape, others in one line."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of {value.dtype} of shape {value.shape}"
    text = repr(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def quantity(amount: float, unit: str, step: int = 1024) -> str:
    """Return an amount with three digits and a prefix of its unit."""
    prefixes = ["", "k", "M", "G", "T", "P"] if step == 1000 else ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
    for prefix in prefixes:
        if amount < step or prefix == prefixes[-1]:
            break
        amount /= step
    number = f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"
    return f"{number} {prefix}{unit}"


def bytes_of(size: int) -> str:
    """Return a number of bytes with three digits."""
    return f"{size} bytes" if size < 1000 else quantity(size, "B", 1000)
