"""Convert the options of a call to numbers and device arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.device import is_on_cuda
from regard._arguments.keywords import check_options
from regard._arguments.numbers import finite_number, flag, integers, real_number, window_sides
from regard._arguments.options import CudaOptions, names_of
from regard.cuda._batches import broadcast_strides
from regard.cuda._elements import dense_strides
from regard.cuda._shapes import MOST_POSITION
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.cuda._shapes import Sizes
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


@dataclass(slots=True)
class Options:
    """The options of a call, with lengths and offsets in their original shapes."""

    is_causal: bool
    query_offset: Any
    window: tuple[int | None, int | None]
    key_lengths: Any
    left_padding: Any
    scale: float | None
    softcap: float
    alibi_slopes: Any
    sinks: Any
    return_lse: bool
    out: Any


def parsed(name: str, options: Mapping[str, Any]) -> Options:
    """Check the options that do not depend on shapes. Raises TypeError or ValueError."""
    check_options(name, options, (*names_of(CudaOptions), "stream"), kind="cuda")
    window = options.get("window")
    scale = options.get("scale")
    softcap = options.get("softcap")
    return Options(
        is_causal=flag("is_causal", options.get("is_causal", False)),
        query_offset=options.get("query_offset", 0),
        window=(None, None) if window is None else window_sides(window),
        key_lengths=options.get("key_lengths"),
        left_padding=options.get("left_padding"),
        scale=None if scale is None else _scale(scale),
        softcap=0.0 if softcap is None else finite_number("softcap", softcap),
        alibi_slopes=options.get("alibi_slopes"),
        sinks=options.get("sinks"),
        return_lse=flag("return_lse", options.get("return_lse", False)),
        out=options.get("out"),
    )


def window_of(options: Options) -> tuple[int, int]:
    """Return the sides of the window, with -1 for an unlimited side."""
    left, right = options.window
    if options.is_causal:
        right = 0
    # No two positions are farther apart than this, and sums of larger sides would exceed 32 bits.
    widest = 2 * MOST_POSITION
    return (
        -1 if left is None or left > widest else left,
        -1 if right is None or right > widest else right,
    )


def entry_numbers(
    name: str,
    value: Any,
    sizes: Sizes,
    entries: str,
    bounds: tuple[int, int | NDArray[np.int64]],
    uploads: Uploads,
    stream: int,
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
            raise ValueError(f"{name} on a device must have its elements side by side")
        return Numbers(view.address, dense_strides(batch), view=view)
    numbers = integers(name, value, any_size=True)
    try:
        spread = np.broadcast_to(numbers, batch) if numbers.ndim else numbers
    except ValueError:
        raise ValueError(
            f"{name} must be an integer or broadcast to the {entries} {batch}, got shape "
            f"{numbers.shape}"
        ) from None
    low, high = bounds
    wrong = (spread < low) | (spread > high)
    if np.any(wrong):
        limit = int(np.min(high))
        first = int(np.broadcast_to(spread, np.shape(wrong))[wrong].flat[0])
        raise ValueError(f"{name} must be from {low} to {limit}, got {first}")
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
    """Return one float32 number per head.

    `may_vary` is whether the numbers may differ between batch entries.
    """
    wanted = f"one number for every query head, shape ({sizes.heads},)"
    if may_vary and sizes.batch:
        wanted += f", or for each batch entry, shape {(*sizes.batch, sizes.heads)}"
    if is_on_cuda(value):
        view = view_of(name, value, stream)
        if view.element != "float32":
            raise TypeError(f"{name} on a device must be of float32, got {view.element}")
        _check_heads(name, view.shape, sizes, may_vary, wanted)
        if view.shape[-1] > 1 and view.strides[-1] != 1:
            raise ValueError(f"{name} on a device must have the numbers of heads side by side")
        strides = broadcast_strides(view.shape[:-1], view.strides[:-1], sizes.batch)
        return Numbers(view.address, strides, view=view)
    array = as_array(name, value)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of real numbers, got {array.dtype}")
    with np.errstate(over="ignore"):  # infinite results are rejected below
        numbers = array.astype(np.float32)
    refused = ~np.isfinite(numbers) if may_vary else np.isnan(numbers) | (numbers == np.inf)
    if refused.any():
        also = "" if may_vary else " or -inf"
        raise ValueError(f"{name} must be finite{also} in float32, got {array[refused].flat[0]}")
    if numbers.ndim == 0 and sizes.heads == 1:
        numbers = numbers.reshape(1)
    _check_heads(name, numbers.shape, sizes, may_vary, wanted)
    at = uploads.add(np.ascontiguousarray(numbers))
    strides = broadcast_strides(numbers.shape[:-1], dense_strides(numbers.shape)[:-1], sizes.batch)
    return Numbers(at, strides, uploaded=True)


def _check_heads(
    name: str, shape: tuple[int, ...], sizes: Sizes, may_vary: bool, wanted: str
) -> None:
    fits = len(shape) > 0 and shape[-1] == sizes.heads
    if fits and len(shape) > 1:
        try:
            fits = may_vary and np.broadcast_shapes(shape[:-1], sizes.batch) == sizes.batch
        except ValueError:
            fits = False
    if not fits:
        raise ValueError(f"{name} must have {wanted}, got shape {shape}")


def _is_dense(view: View) -> bool:
    own = zip(view.shape, view.strides, dense_strides(view.shape), strict=True)
    return all(n == 1 or step == dense for n, step, dense in own)


def _scale(value: Any) -> float:
    number = real_number("scale", value)
    if not math.isfinite(number):
        raise ValueError(f"scale must be finite, got {number}")
    return number
