"""Transfer lengths, offsets, slopes and sinks to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import is_on_cuda
from regard.cuda._batches import broadcast_strides
from regard.cuda._check import MOST_POSITION
from regard.cuda._elements import dense_strides
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from regard._attention.check import Sizes
    from regard.cuda._uploads import Uploads


@dataclass(slots=True)
class Numbers:
    """Numbers on the device, with their address and their strides along the batch.

    If they are `uploaded`, `address` is an offset from the first upload. If there is no array,
    `all` is the number for every entry.
    """

    address: int
    strides: tuple[int, ...]
    all: int = 0
    uploaded: bool = False
    view: View | None = None


def entry_numbers(
    name: str, value: Any, sizes: Sizes, entries: str, uploads: Uploads, stream: int
) -> Numbers:
    """Return one integer per batch entry, or one for all. Raises TypeError or ValueError.

    Numbers that are already on the device must be int32, one per entry. They are not read here.
    """
    batch = sizes.batch
    if is_on_cuda(value):
        view = view_of(name, value, stream)
        if view.element != "int32" or view.shape != batch:
            raise ValueError(
                f"{name} on a device must be of int32, one for each of the {entries}, shape "
                f"{batch}, got {view.element} of shape {view.shape}"
            )
        if not _is_dense(view):
            raise ValueError(f"{name} on a device must be contiguous")
        return Numbers(view.address, dense_strides(batch), view=view)
    if type(value) is int and abs(value) <= MOST_POSITION:  # as in most calls
        return Numbers(0, (0,) * len(batch), all=value)
    numbers = np.asarray(value, np.int64)
    far = (numbers < -MOST_POSITION) | (numbers > MOST_POSITION)
    if far.any():
        raise ValueError(
            f"{name} must be from {-MOST_POSITION} to {MOST_POSITION} on a GPU, got "
            f"{numbers[far].flat[0]}"
        )
    spread = np.broadcast_to(numbers, batch) if numbers.ndim else numbers
    flat = spread.reshape(-1)
    if flat.size == 0:
        return Numbers(0, (0,) * len(batch))
    if numbers.ndim == 0 or bool(np.all(flat == flat[0])):
        return Numbers(0, (0,) * len(batch), all=int(flat[0]))
    at = uploads.add(np.ascontiguousarray(spread, np.int32))
    return Numbers(at, dense_strides(batch), uploaded=True)


def head_numbers(
    name: str, value: Any, sizes: Sizes, may_vary: bool, uploads: Uploads, stream: int
) -> Numbers:
    """Return one float32 number per head. Raises TypeError or ValueError.

    `may_vary` is whether the numbers may differ between batch entries.
    """
    if is_on_cuda(value):
        view = view_of(name, value, stream)
        if view.element != "float32":
            raise TypeError(f"{name} on a device must be of float32, got {view.element}")
        _check_heads(name, view.shape, sizes, may_vary)
        if view.shape[-1] > 1 and view.strides[-1] != 1:
            raise ValueError(f"{name} on a device must be contiguous along heads")
        strides = broadcast_strides(view.shape[:-1], view.strides[:-1], sizes.batch)
        return Numbers(view.address, strides, view=view)
    given = as_array(name, value)
    with np.errstate(over="ignore"):  # numbers that become infinite are refused
        numbers = np.ascontiguousarray(given, np.float32)
    infinite = np.isinf(numbers) & np.isfinite(given)
    if infinite.any():
        raise ValueError(f"{name} must be finite in float32, got {given[infinite].flat[0]}")
    at = uploads.add(numbers)
    strides = broadcast_strides(numbers.shape[:-1], dense_strides(numbers.shape)[:-1], sizes.batch)
    return Numbers(at, strides, uploaded=True)


def _check_heads(name: str, shape: tuple[int, ...], sizes: Sizes, may_vary: bool) -> None:
    fits = len(shape) > 0 and shape[-1] == sizes.heads
    if fits and len(shape) > 1:
        try:
            fits = may_vary and np.broadcast_shapes(shape[:-1], sizes.batch) == sizes.batch
        except ValueError:
            fits = False
    if not fits:
        wanted = f"one number for every query head, shape ({sizes.heads},)"
        if may_vary and sizes.batch:
            wanted += f", or for each batch entry, shape {(*sizes.batch, sizes.heads)}"
        raise ValueError(f"{name} must have {wanted}, got shape {shape}")


def _is_dense(view: View) -> bool:
    own = zip(view.shape, view.strides, dense_strides(view.shape), strict=True)
    return all(n == 1 or step == dense for n, step, dense in own)
