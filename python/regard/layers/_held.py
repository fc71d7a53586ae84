"""Copies of the arguments of a call in train mode, so that callers may change their arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import integers
from regard._arguments.option_table import OPTIONS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from regard.layers._linear import FloatArray


def held_inputs(sources: list[FloatArray]) -> list[FloatArray]:
    """Return a copy of each array, with one copy for adjacent inputs that are the same array."""
    copies: list[FloatArray] = []
    for i, x in enumerate(sources):
        copies.append(copies[-1] if i and x is sources[i - 1] else x.copy())
    return copies


def held_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an attention call, with copies of the arrays that callers passed."""
    held = dict(options)
    for name, value in options.items():
        if not OPTIONS[name].axes or value is None or isinstance(value, int | str):
            continue
        is_whole = OPTIONS[name].type == "integers"
        held[name] = np.array(integers(name, value) if is_whole else value)
    return held


def held_mask(mask: ArrayLike | None) -> Any:
    """Return a mask that a call has accepted, with copies of its arrays."""
    return Masks.of(mask).map(_held).argument


def _held(mask: Any) -> Any:
    return mask if is_sparse(mask) else _without_repeats(mask)  # sparse masks do not change


def _without_repeats(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array, with length 1 for axes that were broadcast without memory."""
    stored = tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)
    return np.array(array[stored])
