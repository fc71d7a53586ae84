"""Check the arguments of a call from the shapes and types of its arrays, which are not read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import stand_in
from regard._arguments.foreign import is_on_cuda, with_arrays
from regard._arguments.masks import Masks
from regard._attention.check import check_call, check_ragged_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._attention.check import Sizes
    from regard.cuda._views import View

    Array = NDArray[Any]
    Look = tuple[tuple[int, ...], type[np.generic]]  # all that a check sees of an array

# Positions are 32-bit integers on the device, which must also hold sums and differences of two
# positions.
MOST_POSITION = 2**29 - 1
MOST_DIM = 256
_SCALARS = frozenset((bool, int, float, str, type(None)))


def check_dense(
    query: View, key: View, value: View, masks: Masks, options: Mapping[str, Any]
) -> tuple[Sizes, tuple[int, ...]]:
    """Return the sizes of a call and the shape of its lse. Raises TypeError or ValueError."""
    given = _on_host(options)
    if _SCALARS.issuperset(map(type, given.values())):
        # In a program's loops, calls repeat. The cache key contains types, because True is not 1.
        shown = masks.map(_look)
        scalars = tuple((name, type(value), value) for name, value in given.items())
        sizes, rows = _checked(*map(_look, (query, key, value)), shown.shown, shown.bias, scalars)
    else:
        call = check_call(*_stand_ins(query, key, value), masks.map(_stand_in).argument, given)
        sizes, rows = call.sizes, call.rows
    _check_limits(query, value, sizes)
    return sizes, rows


@functools.lru_cache(maxsize=256)
def _checked(
    query: Look,
    key: Look,
    value: Look,
    shown: Look | None,
    bias: Look | None,
    options: tuple[tuple[str, type, Any], ...],
) -> tuple[Sizes, tuple[int, ...]]:
    arrays = stand_in(*query), stand_in(*key), stand_in(*value)
    mask = Masks(shown, bias).map(lambda look: stand_in(*look)).argument
    call = check_call(*arrays, mask, {name: option for name, _, option in options})
    return call.sizes, call.rows


def check_ragged(
    query: View,
    key: View,
    value: View,
    starts: Mapping[str, Any],
    masks: Masks,
    options: Mapping[str, Any],
) -> tuple[Sizes, tuple[int, ...]]:
    """Return the sizes of a ragged call and the shape of its lse.

    `starts` are `query_starts` and `key_starts`. Raises TypeError or ValueError.
    """
    for name, given in starts.items():
        if is_on_cuda(given):
            raise TypeError(
                f"{name} must be on the host, since the lengths of sequences determine the "
                "launches; got an array on a device"
            )
    arrays, shown = _stand_ins(query, key, value), masks.map(_stand_in).argument
    queries, keys = starts["query_starts"], starts["key_starts"]
    sizes = check_ragged_call(*arrays, queries, keys, shown, _on_host(options))
    _check_limits(query, value, sizes)
    for name, total in zip(starts, (query.shape[0], key.shape[0]), strict=True):
        if total > MOST_POSITION:
            raise ValueError(f"{name} must be at most {MOST_POSITION} on a GPU, got {total}")
    return sizes, query.shape[:2]


def _stand_ins(query: View, key: View, value: View) -> tuple[Array, Array, Array]:
    return _stand_in(query), _stand_in(key), _stand_in(value)


def _stand_in(view: View) -> Array:
    return stand_in(*_look(view))


def _look(view: View) -> Look:
    return view.shape, np.bool_ if view.element == "bool" else np.float32


def _on_host(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are on the host, without the output, which is on the device."""
    kept = {name: each for name, each in options.items() if name != "out" and not is_on_cuda(each)}
    return dict(with_arrays(kept))


def _check_limits(query: View, value: View, sizes: Sizes) -> None:
    for view, dim in ((query, "head_dim"), (value, "value_dim")):
        if view.shape[-1] > MOST_DIM:
            raise ValueError(
                f"{view.name} must have a {dim} of at most {MOST_DIM} on a GPU, got "
                f"{view.shape[-1]}: compute it on the CPU"
            )
    for name, length in (("q_len", sizes.q_len), ("kv_len", sizes.kv_len)):
        if length > MOST_POSITION:
            raise ValueError(f"{name} must be at most {MOST_POSITION} on a GPU, got {length}")
