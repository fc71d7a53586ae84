"""A call, from the caller's arrays and options to kernel launches and results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.keywords import check_options
from regard._arguments.masks import Masks, is_sparse, parts_of
from regard._arguments.option_table import OPTIONS, PER_ENTRY
from regard._arguments.options import CudaOptions, names_of
from regard._arguments.positions import Positions
from regard.cuda._batches import broadcast_strides, launches
from regard.cuda._check import MOST_POSITION, check_dense, check_ragged
from regard.cuda._elements import COMPUTED, ITEM_BYTES
from regard.cuda._numbers import Numbers, entry_numbers, head_numbers
from regard.cuda._results import given_output, new_array, release
from regard.cuda._status import check_available, check_device, module
from regard.cuda._streams import stream_of
from regard.cuda._uploads import Uploads
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._attention.check import Sizes

_ARRAYS = ("query", "key", "value")
_OF_HEADS = ("alibi_slopes", "sinks")
NO_SPARSE_MASK = (
    "mask must be an array on a GPU, got a sparse mask, which is for the CPU: pass its to_dense() "
    "if that is small"
)


class DeviceCall:
    """A dense or ragged call, which is run only once."""

    def __init__(
        self, name: str, arrays: tuple[Any, Any, Any], options: Mapping[str, Any], stream: Any
    ) -> None:
        check_options(f"regard.cuda.{name}", options, names_of(CudaOptions))
        self.options = options
        check_available()
        self.stream = stream_of(stream, arrays[0])
        named = zip(_ARRAYS, arrays, strict=True)
        self.query, self.key, self.value = (view_of(*each, self.stream) for each in named)
        self.device = self.query.device
        self.views = [self.query, self.key, self.value]
        for view in self.views:
            if view.element not in COMPUTED:
                advice = _FLOAT64 if view.element == "float64" else ""
                raise TypeError(
                    f"{view.name} must be an array of float16, bfloat16 or float32, got "
                    f"{view.element}{advice}"
                )
            if view.element != self.query.element:
                raise TypeError(
                    "query, key and value must be of one type on a GPU, got "
                    f"{self.query.element} and {view.element} of {view.name}: convert one of them"
                )
            self._check_device(view)
            if view.shape and view.shape[-1] > 1 and view.strides[-1] != 1 and 0 not in view.shape:
                raise ValueError(
                    f"{view.name} must have a contiguous last axis on a GPU, got a stride of "
                    f"{view.strides[-1]} elements: pass a contiguous copy"
                )
        check_device(self.device)
        self.uploads = Uploads()
        self.problem = module().Problem()
        self.starts: tuple[int, int] | None = None
        self.wanted_shape: tuple[int, ...] | None = None  # of an output that the caller fills
        # Batch strides by name.
        self.batch_strides: dict[str, tuple[int, ...]] = {}

    def dense(self, mask: Any) -> Any:
        """Compute attention over arrays (..., heads, length, dim)."""
        masks = self._masks(mask)
        sizes, rows = check_dense(self.query, self.key, self.value, masks, self.options)
        self._set_sizes(sizes)
        self._set_options(sizes, "batch axes")
        self._set_masks(masks, (*rows, sizes.kv_len), heads=-3, rows=-2)
        return self._run(sizes, rows, heads_axis=-3, rows_axis=-2)

    def ragged(self, mask: Any, query_starts: Any, key_starts: Any) -> Any:
        """Compute attention over packed arrays (total, heads, dim)."""
        masks = self._masks(mask)
        starts = {"query_starts": query_starts, "key_starts": key_starts}
        sizes, rows = check_ragged(self.query, self.key, self.value, starts, masks, self.options)
        self._set_sizes(sizes)
        queries, keys = (self.uploads.add(np.array(each, np.int32)) for each in starts.values())
        self.starts = queries, keys
        self._set_options(sizes, "sequences")
        self._set_masks(masks, (*rows, sizes.kv_len), heads=-2, rows=-3)
        return self._run(sizes, rows, heads_axis=-2, rows_axis=-3)

    def _check_device(self, view: View) -> None:
        if view.device != self.device:
            raise ValueError(
                f"{view.name} must be on the device of query, {self.device}, got device "
                f"{view.device}"
            )

    def _set_sizes(self, sizes: Sizes) -> None:
        problem = self.problem
        problem.element = self.query.element
        problem.heads, problem.kv_heads = sizes.heads, sizes.kv_heads
        problem.q_len, problem.kv_len = sizes.q_len, sizes.kv_len
        problem.head_dim, problem.value_dim = sizes.head_dim, sizes.value_dim

    def _set_options(self, sizes: Sizes, entries: str) -> None:
        options, problem = self.options, self.problem
        scale, softcap = (_single(name, options.get(name)) for name in ("scale", "softcap"))
        problem.scale = 1 / math.sqrt(sizes.head_dim) if scale is None else float(scale)
        problem.softcap = 0.0 if softcap is None else float(softcap)
        sides = {name: options[name] for name in ("is_causal", "window") if name in options}
        positions = Positions.of(sides, sizes.q_len, sizes.kv_len)
        problem.window_left, problem.window_right = map(_side, (positions.left, positions.right))
        self.numbers: dict[str, Numbers] = {}
        offset = options.get("query_offset", 0)
        if isinstance(offset, str):  # "end"
            problem.query_offset_is_end = True
            offset = 0
        lengths = options.get("key_lengths")  # without them, all keys exist
        integers = {
            "query_offset": offset,
            "key_lengths": sizes.kv_len if lengths is None else lengths,
            "left_padding": options.get("left_padding"),
        }
        for name, value in integers.items():
            if value is None:
                continue
            found = entry_numbers(name, value, sizes, entries, self.uploads, self.stream)
            if found.view is None and not found.uploaded:
                setattr(problem, name, (0, found.all))
            else:
                self._add_numbers(name, found)
        for name in _OF_HEADS:
            value, may_vary = options.get(name), "batch" in OPTIONS[name].axes
            if value is not None:
                found = head_numbers(name, value, sizes, may_vary, self.uploads, self.stream)
                self._add_numbers(name, found)

    def _add_numbers(self, name: str, found: Numbers) -> None:
        if found.view is not None:
            self._check_device(found.view)
            self.views.append(found.view)
        self.numbers[name] = found
        self.batch_strides[name] = found.strides

    def _masks(self, mask: Any) -> Masks:
        """Return views of the masks: of None, an array, or a pair (bool, float) of arrays."""
        if any(map(is_sparse, parts_of(mask))):
            raise TypeError(NO_SPARSE_MASK)
        parts = [view_of("mask", part, self.stream) for part in parts_of(mask)]
        masks = Masks.of_parts(
            parts, lambda part: part.element == "bool", lambda part: part.element
        )
        for part in masks.arrays:
            if part.element not in ("bool", *COMPUTED):
                raise TypeError(
                    "mask must be bool (True = may attend) or float16, bfloat16 or float32 (added "
                    f"to the scores) on a GPU, got {part.element}"
                )
            self._check_device(part)
        return masks

    def _set_masks(self, masks: Masks, scores: tuple[int, ...], heads: int, rows: int) -> None:
        """Set the masks, whose shapes have been checked. `heads` and `rows` are axes of scores."""
        self.masks: dict[str, tuple[View, tuple[int, int, int]]] = {}
        for part in masks.arrays:
            full = broadcast_strides(part.shape, part.strides, scores)
            inner = tuple(full[axis] if len(full) >= -axis else 0 for axis in (heads, rows, -1))
            name = "mask" if part.element == "bool" else "bias"
            self.masks[name] = part, (inner[0], inner[1], inner[2])
            if self.starts is None:
                self.batch_strides[name] = full[:-3]
            self.views.append(part)
        if masks.bias is not None:
            self.problem.bias_element = masks.bias.element

    def _run(self, sizes: Sizes, rows: tuple[int, ...], heads_axis: int, rows_axis: int) -> Any:
        """Compute and return the results; `rows` is the shape of lse."""
        shape = (*rows, sizes.value_dim)
        if self.wanted_shape not in (None, shape):
            raise ValueError(f"out must have shape {shape}, got {self.wanted_shape}")
        out = self.options.get("out")
        if out is None:
            output = new_array("output", self.query, self.query.element, shape, self.stream)
        else:
            output = given_output(out, self.query, shape, self.views, self.stream)
        self.views.append(output)
        tensors = dict(self.masks)
        for view in (self.query, self.key, self.value, output):
            name = "output" if view is output else view.name
            tensors[name] = view, (*_rows_of(view, heads_axis, rows_axis), 1)
        lse = None
        if self.options.get("return_lse"):
            lse = new_array("lse", self.query, "float32", rows, self.stream)
            self.views.append(lse)
            tensors["lse"] = lse, (*_rows_of(lse, heads_axis + 1, rows_axis + 1), 0)
        try:
            if 0 not in rows:
                self._launch(sizes, tensors)
        finally:  # some kernels may have been launched
            self.uploads.release(self.stream)
            release(self.views, self.stream)
        return output.array if lse is None else (output.array, lse.array)

    def _launch(self, sizes: Sizes, tensors: dict[str, tuple[View, tuple[int, int, int]]]) -> None:
        problem = self.problem
        uploaded = self.uploads.copy(self.device, self.stream)
        if self.starts is not None:
            problem.batch = sizes.batch[0]
            problem.query_starts, problem.key_starts = (uploaded + at for at in self.starts)
        for name in tensors:
            if name not in self.batch_strides:
                view = tensors[name][0]
                inner = 2 if name == "lse" else 3
                # Ragged sequences are packed into one entry.
                self.batch_strides[name] = (
                    broadcast_strides(view.shape[:-inner], view.strides[:-inner], sizes.batch)
                    if self.starts is None
                    else (0,)
                )
        size, steps, begins = launches(sizes.batch, self.batch_strides)
        problem.batch = size
        for begin in begins:
            for name, (view, strides) in tensors.items():
                address = view.address + begin[name] * ITEM_BYTES[view.element]
                setattr(problem, name, (address, steps[name], *strides))
            for name, found in self.numbers.items():
                address = found.address + 4 * begin[name] + (uploaded if found.uploaded else 0)
                per_entry = name in PER_ENTRY
                setattr(problem, name, (address, 0) if per_entry else address)
            problem.alibi_batch_stride = steps.get("alibi_slopes", 0)
            problem.launch(self.device, self.stream)


_FLOAT64 = ", which GPUs compute slowly: convert it to float32, or compute it on the CPU"


def _single(name: str, value: Any) -> Any:
    """Return an option that is one number for all heads, or raise TypeError."""
    if np.ndim(value) or isinstance(value, list | tuple):
        raise TypeError(
            f"{name} must be one number on a GPU, got one for each head: multiply query by it, or "
            "compute on the CPU"
        )
    return value


def _side(side: int | None) -> int:
    """Return a side of the window as kernels read it: -1 if it is unlimited."""
    # No two positions are farther apart than this, and sums of larger sides would exceed 32 bits.
    return -1 if side is None or side > 2 * MOST_POSITION else side


def _rows_of(view: View, heads: int, rows: int) -> tuple[int, int]:
    """Return the strides of heads, 0 if there is at most one head, and of rows."""
    has_heads = len(view.shape) >= -heads and view.shape[heads] != 1
    return view.strides[heads] if has_heads else 0, view.strides[rows]
