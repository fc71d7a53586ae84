"""The arrays of a problem, and the kernel launches that cover all entries of its batch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from regard._arguments.option_table import PER_ENTRY
from regard.cuda._device_array import ITEM_BYTES
from regard.cuda._status import module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard.cuda._views import View

    Strides = dict[str, int]

OF_HEADS = ("alibi_slopes", "sinks")


class Launches:
    """A problem for the kernels, and arrays of all entries of its batch.

    Packed sequences have no batch axis in arrays of rows, and rows before heads.
    """

    def __init__(self, batch: tuple[int, ...], *, is_packed: bool) -> None:
        self.problem = module().Problem()
        self._batch, self._is_packed = batch, is_packed
        self._heads, self._rows = (-2, -3) if is_packed else (-3, -2)  # of three axes
        # The arrays, with their strides within an entry, and the strides between entries.
        self._arrays: dict[str, tuple[View, tuple[int, ...]]] = {}
        self._batch_strides: dict[str, tuple[int, ...]] = {}

    def add_rows(self, name: str, view: View) -> None:
        """Add an array of rows of heads, whose last axis is contiguous."""
        inner = self._stride_of_heads(view, self._heads), view.strides[self._rows], 1
        self._add(name, view, 3, inner)

    def add_lse(self, view: View) -> None:
        """Add the array of a number for each row, which has no last axis."""
        heads, rows = self._heads + 1, self._rows + 1
        self._add("lse", view, 2, (self._stride_of_heads(view, heads), view.strides[rows], 0))

    def add_mask(self, name: str, view: View) -> None:
        """Add an array that broadcasts to the scores."""
        own = (0, 0, 0, *broadcast_strides(view.shape, view.strides, view.shape))
        self._add(name, view, 3, (own[self._heads], own[self._rows], own[-1]))

    def add_numbers(self, name: str, view: View) -> None:
        """Add an array of one number for each entry or head."""
        self._add(name, view, 1 if name in OF_HEADS else 0)

    def run(self, device: int, stream: int) -> None:
        """Launch the kernels for all entries."""
        problem = self.problem
        problem.batch, steps, begins = launches(self._batch, self._batch_strides)
        problem.alibi_batch_stride = steps.get("alibi_slopes", 0)
        for begin in begins:
            for name, (view, inner) in self._arrays.items():
                address = view.address + begin[name] * ITEM_BYTES[view.element]
                if name in OF_HEADS:
                    setattr(problem, name, address)
                elif name in PER_ENTRY:
                    setattr(problem, name, (address, 0))
                else:
                    setattr(problem, name, (address, steps[name], *inner))
            problem.launch(device, stream)

    def _add(self, name: str, view: View, axes: int, inner: tuple[int, ...] = ()) -> None:
        """Add an array whose last `axes` are not axes of the batch."""
        self._arrays[name] = view, inner
        outer = max(len(view.shape) - axes, 0)
        strides = broadcast_strides(view.shape[:outer], view.strides[:outer], self._batch)
        self._batch_strides[name] = (0,) if self._is_packed and inner else strides

    @staticmethod
    def _stride_of_heads(view: View, axis: int) -> int:
        """Return the stride of heads, 0 if there is at most one head."""
        has_heads = len(view.shape) >= -axis and view.shape[axis] != 1
        return view.strides[axis] if has_heads else 0


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
