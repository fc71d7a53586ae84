"""The calls whose weights are described, and their lse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard import _core
from regard._arguments.arrays import as_lse, check_shape
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._attention.check import check_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall


def call_of_weights(
    query: ArrayLike, key: ArrayLike | None, mask: Any, options: Mapping[str, Any]
) -> CheckedCall:
    """Return the checked call whose weights are described, which has no values."""
    if key is None:
        raise TypeError("key must be an array, got None: only a recording needs no key")
    if mask is not None:
        warn_if_zero_one(mask)
    return check_call(query, key, None, mask, with_arrays(options))


def lse_of(call: CheckedCall, lse: ArrayLike | None = None) -> Array:
    """Return the given lse of a call, or else compute it."""
    if lse is not None:
        return given_lse(lse, call.rows)
    return computed_lse(
        _core.attention, (call.query, call.key), (), call.masks.argument, call.options
    )


def given_lse(lse: ArrayLike, rows: tuple[int, ...]) -> Array:
    """Return the argument `lse` of a call whose lse has the shape `rows`, or raise an error."""
    array = as_lse(lse)
    check_shape("lse", array, rows, "the forward call's lse")
    return array


def computed_lse(
    attention: Callable[..., Any],
    arrays: tuple[Array, Array],
    starts: tuple[ArrayLike, ...],
    mask: Any,
    options: Mapping[str, Any],
) -> Array:
    """Return the lse of a forward call whose values have no columns."""
    query, key = arrays
    words = {**options, "return_lse": True, "_wide_lse": True}
    _, computed = attention(query, key, key[..., :0], *starts, mask, words)
    return np.asarray(computed)
