"""A call, from the caller's arrays and options to kernel launches and results."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array
from regard._arguments.foreign import is_on_cuda
from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, is_sparse, parts_of
from regard._arguments.option_table import PER_ENTRY
from regard._arguments.options import CudaOptions, names_of
from regard._arguments.positions import Positions
from regard.cuda._check import MOST_POSITION, check
from regard.cuda._device_array import ITEM_BYTES, copied
from regard.cuda._results import given_output, new_array, release
from regard.cuda._status import check_available, check_device, module
from regard.cuda._streams import stream_of
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._attention.check import Sizes

    Strides = dict[str, int]

_ARRAYS = ("query", "key", "value")
_COMPUTED = ("float16", "bfloat16", "float32")
_OF_HEADS = ("alibi_slopes", "sinks")
_FLOAT64 = ", which GPUs compute slowly: convert it to float32, or compute it on the CPU"
NO_SPARSE_MASK = (
    "mask must be an array on a GPU, got a sparse mask, which is for the CPU: pass its to_dense() "
    "if that is small"
)


class DeviceCall:
    """A call, which is run only once: ragged if it has starts of sequences, otherwise dense."""

    def __init__(
        self,
        name: str,
        arrays: tuple[Any, Any, Any],
        starts: tuple[Any, ...],
        options: Mapping[str, Any],
        stream: Any = None,
    ) -> None:
        check_options(f"regard.cuda.{name}", options, names_of(CudaOptions))
        check_available()
        self.stream = stream_of(stream, arrays[0])
        query, key, value = (
            view_of(*each, self.stream) for each in zip(_ARRAYS, arrays, strict=True)
        )
        self.arrays = query, key, value
        self.query, self.device = query, query.device
        self.views: list[View] = []
        for view in self.arrays:
            if view.element not in _COMPUTED:
                advice = _FLOAT64 if view.element == "float64" else ""
                raise TypeError(
                    f"{view.name} must be an array of float16, bfloat16 or float32, got "
                    f"{view.element}{advice}"
                )
            if view.element != query.element:
                raise TypeError(
                    "query, key and value must be of one type on a GPU, got "
                    f"{query.element} and {view.element} of {view.name}: convert one of them"
                )
            self._use(view)
            if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1 and 0 not in view.shape:
                raise ValueError(
                    f"{view.name} must have a contiguous last axis on a GPU, got a stride of "
                    f"{view.strides[-1]} elements: pass a contiguous copy"
                )
        check_device(self.device)
        self.options = {
            name: self._on_device(name, value)
            if name in (*PER_ENTRY, *_OF_HEADS) and is_on_cuda(value)
            else value
            for name, value in options.items()
        }
        self.problem = module().Problem()
        self.starts = dict(zip(("query_starts", "key_starts"), starts, strict=False))
        # The arrays of a launch, with their strides within a batch entry, which numbers
        # for each entry or head do not have; and the strides between entries.
        self.parts: dict[str, tuple[View, tuple[int, ...]]] = {}
        self.batch_strides: dict[str, tuple[int, ...]] = {}

    def run(self, mask: Any, wanted_shape: tuple[int, ...] | None = None) -> Any:
        """Compute and return the results. An output that the caller fills has a `wanted_shape`."""
        masks = self._masks(mask)
        sizes, rows = check(self.arrays, masks, self.options, self.starts)
        shape = (*rows, sizes.value_dim)
        if wanted_shape not in (None, shape):
            raise ValueError(f"out must have shape {shape}, got {wanted_shape}")
        self._set_options(sizes)
        for name, given in self.starts.items():
            setattr(self.problem, name, self._upload(name, np.array(given, np.int32)).address)
        heads, row = (-2, -3) if self.starts else (-3, -2)  # axes of rows and heads
        out = self.options.get("out")
        if out is None:
            output = new_array("output", self.query, self.query.element, shape, self.stream)
        else:
            output = given_output(out, self.query, shape, self.views, self.stream)
        for view in (*self.arrays, self._use(output)):
            name = "output" if view is output else view.name
            self._add(name, view, (*_rows_of(view, heads, row), 1), sizes.batch)
        lse = None
        if self.options.get("return_lse"):
            lse = self._use(new_array("lse", self.query, "float32", rows, self.stream))
            self._add("lse", lse, (*_rows_of(lse, heads + 1, row + 1), 0), sizes.batch, axes=2)
        for part in masks.arrays:
            strides = broadcast_strides(part.shape, part.strides, (0, 0, *rows, sizes.kv_len))
            name = "mask" if part.element == "bool" else "bias"
            self._add(name, part, (strides[heads], strides[row], strides[-1]), sizes.batch)
        if masks.bias is not None:
            self.problem.bias_element = masks.bias.element
        try:
            if 0 not in rows:
                self._launch(sizes)
        finally:  # some kernels may have been launched
            release(self.views, self.stream)
        return output.array if lse is None else (output.array, lse.array)

    def _use(self, view: View) -> View:
        """Note that the kernels use an array, which must be on the device of query."""
        if view.device != self.device:
            raise ValueError(
                f"{view.name} must be on the device of query, {self.device}, got device "
                f"{view.device}"
            )
        self.views.append(view)
        return view

    def _upload(self, name: str, array: NDArray[Any]) -> View:
        return self._use(view_of(name, copied(array, self.device, self.stream), self.stream))

    def _on_device(self, name: str, value: Any) -> View:
        """Return a view of numbers on the device, one for each batch entry or head."""
        view = view_of(name, value, self.stream)
        if name in _OF_HEADS:
            if view.element != "float32":
                raise TypeError(f"{name} on a device must be of float32, got {view.element}")
            if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1:
                raise ValueError(f"{name} on a device must be contiguous along heads")
        return self._use(view)

    def _masks(self, mask: Any) -> Masks:
        """Return views of the masks: of None, an array, or a pair (bool, float) of arrays."""
        if any(map(is_sparse, parts_of(mask))):
            raise TypeError(NO_SPARSE_MASK)
        parts = [view_of("mask", part, self.stream) for part in parts_of(mask)]
        masks = Masks.of_parts(
            parts, lambda part: part.element == "bool", lambda part: part.element
        )
        for part in masks.arrays:
            if part.element not in ("bool", *_COMPUTED):
                raise TypeError(
                    "mask must be bool (True = may attend) or float16, bfloat16 or float32 (added "
                    f"to the scores) on a GPU, got {part.element}"
                )
            self._use(part)
        return masks

    def _set_options(self, sizes: Sizes) -> None:
        options: dict[str, Any] = self.options
        problem = self.problem
        problem.element = self.query.element
        problem.heads, problem.kv_heads = sizes.heads, sizes.kv_heads
        problem.q_len, problem.kv_len = sizes.q_len, sizes.kv_len
        problem.head_dim, problem.value_dim = sizes.head_dim, sizes.value_dim
        scale, softcap = (_single(name, options.get(name)) for name in ("scale", "softcap"))
        problem.scale = 1 / math.sqrt(sizes.head_dim) if scale is None else float(scale)
        problem.softcap = 0.0 if softcap is None else float(softcap)
        sides = {name: each for name, each in options.items() if name in ("is_causal", "window")}
        positions = Positions.of(sides, sizes.q_len, sizes.kv_len)
        problem.window_left, problem.window_right = map(_side, (positions.left, positions.right))
        # Without lengths, all keys exist.
        numbers: dict[str, Any] = {"query_offset": 0, "key_lengths": sizes.kv_len}
        numbers |= {name: options[name] for name in PER_ENTRY if options.get(name) is not None}
        if isinstance(numbers["query_offset"], str):  # "end"
            problem.query_offset_is_end = True
            numbers["query_offset"] = 0
        for name, value in numbers.items():
            self._set_of_entries(name, value, sizes.batch)
        for name in _OF_HEADS:
            if (value := options.get(name)) is not None:
                if not isinstance(value, View):
                    value = self._upload(name, _finite32(name, value))
                self._add(name, value, (), sizes.batch, axes=1)

    def _set_of_entries(self, name: str, value: Any, batch: tuple[int, ...]) -> None:
        """Set the integers of batch entries, or one integer for all."""
        if type(value) is int and abs(value) <= MOST_POSITION:  # as in most calls
            setattr(self.problem, name, (0, value))
            return
        if not isinstance(value, View):
            numbers = np.asarray(value, np.int64)
            far = (numbers < -MOST_POSITION) | (numbers > MOST_POSITION)
            if far.any():
                raise ValueError(
                    f"{name} must be from {-MOST_POSITION} to {MOST_POSITION} on a GPU, got "
                    f"{numbers[far].flat[0]}"
                )
            if numbers.ndim == 0 or numbers.size == 0 or (numbers == numbers.flat[0]).all():
                setattr(self.problem, name, (0, int(numbers.flat[0]) if numbers.size else 0))
                return
            value = self._upload(name, np.broadcast_to(numbers, batch).astype(np.int32))
        if value.element != "int32":
            raise TypeError(f"{name} on a device must be of int32, got {value.element}")
        if value.shape != batch:
            entries = "sequences" if self.starts else "batch axes"
            raise ValueError(
                f"{name} on a device must have one number for each of the {entries}, shape "
                f"{batch}, got shape {value.shape}"
            )
        if not value.is_dense:
            raise ValueError(f"{name} on a device must be contiguous")
        self._add(name, value, (), batch, axes=0)

    def _add(
        self, name: str, view: View, inner: tuple[int, ...], batch: tuple[int, ...], axes: int = 3
    ) -> None:
        """Add an array of the launch. Its last `axes` are not axes of the batch."""
        self.parts[name] = view, inner
        outer = max(len(view.shape) - axes, 0)
        strides = broadcast_strides(view.shape[:outer], view.strides[:outer], batch)
        # Ragged arrays are packed: sequences have no axis.
        self.batch_strides[name] = (0,) if self.starts and inner else strides

    def _launch(self, sizes: Sizes) -> None:
        problem = self.problem
        problem.batch, steps, begins = launches(sizes.batch, self.batch_strides)
        for begin in begins:
            for name, (view, strides) in self.parts.items():
                address = view.address + begin[name] * ITEM_BYTES[view.element]
                if name in _OF_HEADS:
                    setattr(problem, name, address)
                elif name in PER_ENTRY:
                    setattr(problem, name, (address, 0))
                else:
                    setattr(problem, name, (address, steps[name], *strides))
            problem.alibi_batch_stride = steps.get("alibi_slopes", 0)
            problem.launch(self.device, self.stream)


def _single(name: str, value: Any) -> Any:
    """Return an option that is one number for all heads, or raise TypeError."""
    if np.ndim(value) or isinstance(value, list | tuple):
        raise TypeError(
            f"{name} must be one number on a GPU, got one for each head: multiply query by it, or "
            "compute on the CPU"
        )
    return value


def _finite32(name: str, value: Any) -> NDArray[np.float32]:
    """Return numbers of heads in float32, or raise ValueError if one becomes infinite."""
    given = as_array(name, value)
    with np.errstate(over="ignore"):
        numbers = np.asarray(given, np.float32)
    infinite = np.isinf(numbers) & np.isfinite(given)
    if infinite.any():
        raise ValueError(f"{name} must be finite in float32, got {given[infinite].flat[0]}")
    return numbers


def _side(side: int | None) -> int:
    """Return a side of the window as kernels read it: -1 if it is unlimited."""
    # No two positions are farther apart than this, and sums of larger sides would exceed 32 bits.
    return -1 if side is None or side > 2 * MOST_POSITION else side


def _rows_of(view: View, heads: int, rows: int) -> tuple[int, int]:
    """Return the strides of heads, 0 if there is at most one head, and of rows."""
    has_heads = len(view.shape) >= -heads and view.shape[heads] != 1
    return view.strides[heads] if has_heads else 0, view.strides[rows]


def launches(
    batch: tuple[int, ...], strides: Mapping[str, tuple[int, ...]]
) -> tuple[int, Strides, list[Strides]]:
    """Return the batch axis of a launch, its strides, and the offsets of each launch.

    `strides` are the strides of every array along the axes `batch`, 0 for broadcast axes. Axes that
    can be merged in all arrays become one axis. The last remaining axis is the batch axis of the
    launches. For every index along the other axes, there is one launch; none if the batch is empty.
    """
    names = list(strides)
    axes: list[tuple[int, Strides]] = []
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        steps = {name: strides[name][axis] for name in names}
        if axes and all(axes[-1][1][name] == size * steps[name] for name in names):
            axes[-1] = axes[-1][0] * size, steps
        else:
            axes.append((size, steps))
    if 0 in batch:
        return 0, dict.fromkeys(names, 0), []
    size, steps = axes.pop() if axes else (1, dict.fromkeys(names, 0))
    begins = [
        {
            name: sum(index * axis[1][name] for index, axis in zip(indices, axes, strict=True))
            for name in names
        }
        for indices in itertools.product(*(range(count) for count, _ in axes))
    ]
    return size, steps, begins


def broadcast_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the strides of an array broadcast to a shape."""
    missing = len(target) - len(shape)
    own = (0 if n == 1 else step for n, step in zip(shape, strides, strict=True))
    return (0,) * missing + tuple(own)
