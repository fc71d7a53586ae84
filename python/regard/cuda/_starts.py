"""The starts of the sequences in a ragged call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.device import is_on_cuda
from regard._arguments.numbers import integers
from regard.cuda._shapes import MOST_POSITION

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.cuda._views import View


def starts_of(name: str, value: Any, packed: View) -> NDArray[np.int64]:
    """Return the starts of a ragged call's sequences, or raise TypeError or ValueError."""
    if is_on_cuda(value):
        raise TypeError(
            f"{name} must be on the host, since the lengths of sequences decide what is launched; "
            "got an array on a device"
        )
    starts = integers(name, value)
    if starts.ndim != 1 or starts.size < 1:
        raise ValueError(f"{name} must have shape (sequences + 1,), got shape {starts.shape}")
    if starts.max() > MOST_POSITION:
        raise ValueError(f"{name} must be at most {MOST_POSITION} on a GPU, got {starts.max()}")
    starts = starts.astype(np.int64)
    if starts[0] != 0:
        raise ValueError(f"{name} must begin with 0, got {starts[0]}")
    down = np.flatnonzero(np.diff(starts) < 0)
    if down.size:
        at = int(down[0]) + 1
        raise ValueError(
            f"{name} must not decrease, got {starts[at]} after {starts[at - 1]} at index {at}"
        )
    total = packed.shape[0] if packed.shape else 0
    if starts[-1] != total:
        raise ValueError(
            f"{name} must end with the length of {packed.name}, {total}, got {starts[-1]}"
        )
    return starts
