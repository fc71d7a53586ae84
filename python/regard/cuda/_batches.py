"""Map any number of batch axes to launches with one batch axis."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

Strides = dict[str, int]


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
