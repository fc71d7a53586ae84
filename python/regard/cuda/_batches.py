"""Batch axes of any number as launches of one batch axis each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

Strides = dict[str, int]


def launches(
    batch: tuple[int, ...], strides: Mapping[str, tuple[int, ...]]
) -> tuple[int, Strides, list[Strides]]:
    """Return the batch axis of a launch, its strides, and where each launch begins.

    Axes that all arrays step through alike become one. What remains beside the last axis is
    counted through, a launch for each step.

    Parameters
    ----------
    batch : tuple of int
        The sizes of the batch axes.
    strides : mapping of str to tuple of int
        The strides of every array along these axes, 0 where it is broadcast.

    Returns
    -------
    size : int
        Entries of a launch.
    steps : dict
        The stride of every array along them.
    begins : list of dict
        For each launch, the offset of every array. Empty if the batch is.
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
    """Return the strides of an array that is broadcast to a shape."""
    missing = len(target) - len(shape)
    own = (0 if n == 1 else step for n, step in zip(shape, strides, strict=True))
    return (0,) * missing + tuple(own)
