"""Check a call with the check of the CPU, from the shapes and types of arrays, and GPU limits."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stand_in
from regard._arguments.foreign import is_on_cuda, with_arrays
from regard._arguments.masks import Masks
from regard._arguments.option_table import PER_ENTRY
from regard._attention.check import check_call, check_ragged_call
from regard.cuda._views import View

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._attention.check import Sizes

    Look = tuple[tuple[int, ...], type[np.generic]]  # all that a check sees of an array

# Positions are 32-bit integers on the device, which must also hold sums and differences of two
# positions.
MOST_POSITION = 2**29 - 1
MOST_DIM = 256
_HASHABLE = frozenset((bool, int, float, str, type(None), View))


def check(
    arrays: tuple[View, View, View],
    masks: Masks,
    options: Mapping[str, Any],
    starts: Mapping[str, Any],
) -> tuple[Sizes, tuple[int, ...]]:
    """Return the sizes of a call and the shape of its lse. Raises TypeError or ValueError.

    `starts` are `query_starts` and `key_starts` of a ragged call.
    """
    for name, given in starts.items():
        if is_on_cuda(given):
            raise TypeError(
                f"{name} must be on the host, since the lengths of sequences determine the "
                "launches; got an array on a device"
            )
    # In a program's loops, calls repeat. The cache key contains types, because True is not 1.
    seen = tuple(
        (name, type(value), _look(value) if isinstance(value, View) else value)
        for name, value in _checkable(options).items()
    )
    is_hashable = not starts and all(kind in _HASHABLE for _, kind, _ in seen)
    cached = _checked if is_hashable else _checked.__wrapped__
    shown = masks.map(_look)
    looks = tuple(map(_look, arrays))
    sizes, rows = cached(looks, shown.shown, shown.bias, seen, tuple(starts.values()))
    for view, dim in ((arrays[0], "head_dim"), (arrays[2], "value_dim")):
        if view.shape[-1] > MOST_DIM:
            raise ValueError(
                f"{view.name} must have a {dim} of at most {MOST_DIM} on a GPU, got "
                f"{view.shape[-1]}: compute it on the CPU"
            )
    lengths = {"q_len": sizes.q_len, "kv_len": sizes.kv_len}
    lengths |= {name: view.shape[0] for name, view in zip(starts, arrays, strict=False)}
    for name, length in lengths.items():
        if length > MOST_POSITION:
            raise ValueError(f"{name} must be at most {MOST_POSITION} on a GPU, got {length}")
    return sizes, rows


@functools.lru_cache(maxsize=256)
def _checked(
    arrays: tuple[Look, ...],
    shown: Look | None,
    bias: Look | None,
    options: tuple[tuple[str, type, Any], ...],
    starts: tuple[Any, ...],
) -> tuple[Sizes, tuple[int, ...]]:
    query, key, value = (stand_in(*look) for look in arrays)
    mask = Masks(shown, bias).map(lambda look: stand_in(*look)).argument
    given = {name: np.zeros(*each) if kind is View else each for name, kind, each in options}
    if starts:
        queries, keys = starts
        sizes = check_ragged_call(query, key, value, queries, keys, mask, given)
        return sizes, query.shape[:2]
    call = check_call(query, key, value, mask, given)
    return call.sizes, call.rows


def _checkable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without numbers per entry on the device, which are not read here."""
    on_device = {name: each for name, each in options.items() if isinstance(each, View)}
    on_host = {name: options[name] for name in options.keys() - on_device - {"out"}}
    of_heads = {name: on_device[name] for name in on_device.keys() - PER_ENTRY}
    return {**with_arrays(on_host), **of_heads}


def _look(view: View) -> Look:
    return view.shape, np.bool_ if view.element == "bool" else np.float32
