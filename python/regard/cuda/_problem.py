"""A call, from the caller's arrays and options to kernel launches and results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import Masks
from regard.cuda._batches import broadcast_strides, launches
from regard.cuda._elements import COMPUTED, ITEM_BYTES
from regard.cuda._options import (
    Numbers,
    entry_numbers,
    head_numbers,
    parsed,
    window_of,
)
from regard.cuda._results import given_output, new_array, release
from regard.cuda._shapes import MOST_POSITION, dense_sizes, ragged_sizes
from regard.cuda._starts import starts_of
from regard.cuda._status import check_available, check_device, module
from regard.cuda._streams import stream_of
from regard.cuda._uploads import Uploads
from regard.cuda._views import View, view_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard.cuda._shapes import Sizes

_ARRAYS = ("query", "key", "value")


class Call:
    """A dense or ragged call, which is run only once."""

    def __init__(
        self, name: str, arrays: tuple[Any, Any, Any], options: Mapping[str, Any], stream: Any
    ) -> None:
        self.options = parsed(name, options)
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
                    f"{view.name} must have its last axis side by side on a GPU, got a stride of "
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
        sizes = dense_sizes(self.query, self.key, self.value)
        self._set_sizes(sizes)
        self._set_options(sizes, "batch axes", sizes.kv_len, sizes.q_len)
        scores = (*sizes.rows, sizes.kv_len)
        self._set_masks(mask, scores, "(..., heads, q_len, kv_len)", heads=-3, rows=-2)
        return self._run(sizes, heads=-3, rows=-2)

    def ragged(self, mask: Any, query_starts: Any, key_starts: Any) -> Any:
        """Compute attention over packed arrays (total, heads, dim)."""
        queries = starts_of("query_starts", query_starts, self.query)
        keys = starts_of("key_starts", key_starts, self.key)
        if queries.size != keys.size:
            raise ValueError(
                "query_starts and key_starts must have one length, got "
                f"{queries.size} and {keys.size}"
            )
        present = np.diff(keys)
        q_len, kv_len = (int(np.diff(each).max(initial=0)) for each in (queries, keys))
        sizes = ragged_sizes(self.query, self.key, self.value, queries.size - 1, q_len, kv_len)
        self._set_sizes(sizes)
        self.starts = (
            self.uploads.add(queries.astype(np.int32)),
            self.uploads.add(keys.astype(np.int32)),
        )
        self._set_options(sizes, "sequences", present, q_len)
        self._set_masks(mask, (*sizes.rows, kv_len), "(total, heads, longest kv_len)", -2, -3)
        return self._run(sizes, heads=-2, rows=-3)

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

    def _set_options(
        self, sizes: Sizes, entries: str, present: int | NDArray[np.int64], q_len: int
    ) -> None:
        """Set the options of the problem. `present` is the number of keys per batch entry."""
        options, problem = self.options, self.problem
        problem.scale = 1 / math.sqrt(sizes.head_dim) if options.scale is None else options.scale
        problem.softcap = options.softcap
        problem.window_left, problem.window_right = window_of(options)
        self.numbers: dict[str, Numbers] = {}
        keys: tuple[int, int | NDArray[np.int64]] = (0, present)
        anywhere: tuple[int, int] = (-MOST_POSITION, MOST_POSITION)
        offset = options.query_offset
        if isinstance(offset, str):
            if offset != "end":
                raise ValueError(
                    "query_offset must be an integer, an array of integers or 'end', got "
                    f"{offset!r}"
                )
            problem.query_offset_is_end = True
            offset = 0
        self._add_entries("query_offset", offset, sizes, entries, anywhere)
        # Without key_lengths, every key exists.
        lengths = sizes.kv_len if options.key_lengths is None else options.key_lengths
        if options.key_lengths is not None:
            self._add_entries("key_lengths", lengths, sizes, entries, keys)
        else:
            problem.key_lengths = 0, sizes.kv_len
        if options.left_padding is not None:
            self._add_entries("left_padding", options.left_padding, sizes, entries, keys)
        for name, value, may_vary in (
            ("alibi_slopes", options.alibi_slopes, True),
            ("sinks", options.sinks, False),
        ):
            if value is not None:
                found = head_numbers(name, value, sizes, may_vary, self.uploads, self.stream)
                self._add_numbers(name, found)

    def _add_entries(
        self,
        name: str,
        value: Any,
        sizes: Sizes,
        entries: str,
        bounds: tuple[int, int | NDArray[np.int64]],
    ) -> None:
        found = entry_numbers(name, value, sizes, entries, bounds, self.uploads, self.stream)
        if found.view is None and not found.uploaded:
            setattr(self.problem, name, (0, found.all))
        else:
            self._add_numbers(name, found)

    def _add_numbers(self, name: str, found: Numbers) -> None:
        if found.view is not None:
            self._check_device(found.view)
            self.views.append(found.view)
        self.numbers[name] = found
        self.batch_strides[name] = found.strides

    def _set_masks(
        self, mask: Any, scores: tuple[int, ...], meaning: str, heads: int, rows: int
    ) -> None:
        """Set the masks from None, an array, or a pair (bool, float) of arrays."""
        self.masks: dict[str, tuple[View, tuple[int, int, int]]] = {}
        if mask is None:
            return
        is_pair = isinstance(mask, tuple) and len(mask) == 2
        parts = [view_of("mask", part, self.stream) for part in (mask if is_pair else (mask,))]
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
            try:
                fits = np.broadcast_shapes(part.shape, scores) == scores
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"mask must broadcast to {meaning} = {scores}, got shape {part.shape}"
                )
            full = broadcast_strides(part.shape, part.strides, scores)
            inner = tuple(full[axis] if len(full) >= -axis else 0 for axis in (heads, rows, -1))
            name = "mask" if part.element == "bool" else "bias"
            self.masks[name] = part, (inner[0], inner[1], inner[2])
            if self.starts is None:
                self.batch_strides[name] = full[:-3]
            self.views.append(part)
        if "bias" in self.masks:
            self.problem.bias_element = self.masks["bias"][0].element

    def _run(self, sizes: Sizes, heads: int, rows: int) -> Any:
        shape = (*sizes.rows, sizes.value_dim)
        if self.wanted_shape not in (None, shape):
            raise ValueError(f"out must have shape {shape}, got {self.wanted_shape}")
        if self.options.out is None:
            output = new_array("output", self.query, self.query.element, shape, self.stream)
        else:
            output = given_output(self.options.out, self.query, shape, self.views, self.stream)
        self.views.append(output)
        tensors = {
            view.name if view is not output else "output": (view, _inner(view, heads, rows))
            for view in (self.query, self.key, self.value, output)
        }
        tensors |= self.masks
        lse = None
        if self.options.return_lse:
            lse = new_array("lse", self.query, "float32", sizes.rows, self.stream)
            self.views.append(lse)
            tensors["lse"] = lse, (*_rows_of(lse, heads + 1, rows + 1), 0)
        try:
            self._launch(sizes, tensors)
        finally:  # some kernels may have been launched
            self.uploads.release(self.stream)
            release(self.views, self.stream)
        return output.array if lse is None else (output.array, lse.array)

    def _launch(self, sizes: Sizes, tensors: dict[str, tuple[View, tuple[int, int, int]]]) -> None:
        if 0 in sizes.rows:
            return
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
                per_entry = name not in ("alibi_slopes", "sinks")
                setattr(problem, name, (address, 0) if per_entry else address)
            problem.alibi_batch_stride = steps.get("alibi_slopes", 0)
            problem.launch(self.device, self.stream)


_FLOAT64 = ", which GPUs compute slowly: convert it to float32, or compute it on the CPU"


def _rows_of(view: View, heads: int, rows: int) -> tuple[int, int]:
    """Return the strides of heads, 0 if there is at most one head, and of rows."""
    has_heads = len(view.shape) >= -heads and view.shape[heads] != 1
    return view.strides[heads] if has_heads else 0, view.strides[rows]


def _inner(view: View, heads: int, rows: int) -> tuple[int, int, int]:
    return (*_rows_of(view, heads, rows), 1)
