"""Copy what a call in train mode was given, so that callers may change their arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_masks
from regard._arguments.numbers import integers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray

_INTEGERS = frozenset({"query_offset", "key_lengths", "left_padding"})


def held_inputs(sources: list[FloatArray]) -> list[FloatArray]:
    """Return a copy of each array, and one copy of neighbours that are the same array."""
    copies: list[FloatArray] = []
    for i, x in enumerate(sources):
        copies.append(copies[-1] if i and x is sources[i - 1] else x.copy())
    return copies


def held_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an attention call, with copies of the arrays that callers passed."""
    held = dict(options)
    for name in _INTEGERS & options.keys():
        if options[name] is not None and not isinstance(options[name], int):
            held[name] = np.array(integers(name, options[name]))
    if options.get("sinks") is not None:
        held["sinks"] = np.array(options["sinks"])
    return held


def held_mask(mask: ArrayLike | None) -> Any:
    """Return copies of the arrays of a mask that a call has accepted."""
    masks = as_masks(mask)
    if isinstance(masks, tuple):
        return tuple(map(_without_repeats, masks))
    return None if masks is None else _without_repeats(masks)


def _without_repeats(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array, and leave axes of length 1 where it was broadcast without memory."""
    stored = tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)
    return np.array(array[stored])
