"""The layouts that an array can have in memory: functions that return the same values elsewhere.
The memory in between is NaN, so that reading it shows."""

from collections.abc import Callable

import numpy as np


def _within(array, shape, index):
    room = np.full(shape, True if array.dtype == bool else np.nan, array.dtype)
    room[index] = array
    return room[index]


def _swapped_storage(array, first, second):
    return array.swapaxes(first, second).copy(order="C").swapaxes(first, second)


def _misaligned(array):
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved = np.frombuffer(memory.data, array.dtype, array.size, offset=1).reshape(array.shape)
    moved[...] = array
    return moved


def _record_field(array):
    """Return an array with strides that are not multiples of the item size."""
    records = np.zeros(array.shape, [("before", "u1"), ("x", array.dtype), ("after", "u2")])
    records["x"] = array
    return records["x"]


def _read_only(array):
    copy = array.copy()
    copy.setflags(write=False)
    return copy


def _byte_swapped(array):
    # bfloat16 has only one byte order.
    swapped = array.dtype.newbyteorder("S")
    return array.copy() if array.dtype.name == "bfloat16" else array.astype(swapped)


LAYOUTS: dict[str, Callable] = {
    "fortran": lambda a: a.copy(order="F"),
    "heads_after_length": lambda a: _swapped_storage(a, -3 if a.ndim > 2 else -1, -2),
    "columns_before_rows": lambda a: _swapped_storage(a, -1, -2),
    "batch_last": lambda a: _swapped_storage(a, 0, -1),
    "every_second_column": lambda a: _within(
        a, (*a.shape[:-1], 2 * a.shape[-1] + 1), np.s_[..., 1 : 2 * a.shape[-1] + 1 : 2]
    ),
    "every_third_row": lambda a: _within(
        a, (*a.shape[:-2], 3 * a.shape[-2], a.shape[-1]), np.s_[..., ::3, :]
    ),
    "reversed_columns": lambda a: a[..., ::-1].copy()[..., ::-1],
    "reversed_rows": lambda a: a[..., ::-1, :].copy()[..., ::-1, :],
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "padded": lambda a: _within(
        a, tuple(n + 3 for n in a.shape), tuple(slice(1, n + 1) for n in a.shape)
    ),
    "misaligned": _misaligned,
    "record_field": _record_field,
    "read_only": _read_only,
    "byte_swapped": _byte_swapped,
    # The dtype spells out the byte order, as from HDF5 and Zarr.
    "explicit_order": lambda a: a.copy().view(a.dtype.newbyteorder("<")),
}
