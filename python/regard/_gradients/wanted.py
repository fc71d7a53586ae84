"""Check the requested gradients of a call, sum them over broadcast axes, and deliver them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import (
    check_out,
    converted,
    is_floating,
    refuse_overlap,
    shown,
)
from regard._arguments.foreign import readable
from regard._arguments.masks import is_sparse, parts_of
from regard._arguments.numbers import iterated
from regard._arguments.option_table import DIFFERENTIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, DTypeLike

    from regard._arguments.arrays import Array


_ROLES = ("query", "key", "value")
_FIELDS = (*_ROLES, "mask", *DIFFERENTIABLE)


class GradientRequest(NamedTuple):
    """The checked requests of a call."""

    names: set[str]
    """The requested gradients."""
    out: dict[str, Array | None]
    """The caller's arrays."""
    likes: dict[str, Array]
    """The inputs of the requested gradients that Python delivers: masks and options."""

    def deliver(self, name: str, gradient: Array) -> Array:
        """Return a gradient in its type, in the caller's array if there is one."""
        out = self.out[name]
        if out is None:
            return gradient.astype(self.likes[name].dtype, copy=False)
        np.copyto(out, gradient, casting="unsafe")
        return out


def wanted_gradients(
    with_respect_to: Iterable[str],
    mask: ArrayLike | None,
    options: Mapping[str, Any],
    out: tuple[Array | None, ...] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> GradientRequest:
    """Check `with_respect_to` and `out`, or raise TypeError or ValueError.

    `inputs` are the other arrays of the call, which `out` must not overlap.
    """
    names = _names(with_respect_to)
    arrays = _arrays_of_out(out)
    likes = {"mask": _float_mask(mask)} if "mask" in names else {}
    likes |= {name: _option(name, options) for name in DIFFERENTIABLE if name in names}
    request = GradientRequest(names, arrays, likes)
    if out is None or not likes:
        return request
    if "sinks" in likes:  # they are read after the kernels have written
        for name in _ROLES:
            reason = "they would be overwritten; pass another array"
            refuse_overlap(f"out.{name}", arrays[name], "sinks", likes["sinks"], reason)
    others = {**(inputs or {}), **likes, **{f"out.{name}": arrays[name] for name in _ROLES}}
    for name, like in likes.items():
        array = arrays[name]
        if array is not None:
            check_out(f"out.{name}", array, like.dtype, like.shape)
            for argument, other in others.items():
                reason = "it would be overwritten; pass another array"
                if argument.startswith("out."):
                    reason = "two results cannot share memory"
                for part in parts_of(other):
                    refuse_overlap(f"out.{name}", array, argument, part, reason)
        others[f"out.{name}"] = array
    return request


def _names(with_respect_to: Iterable[str]) -> set[str]:
    if isinstance(with_respect_to, str):
        raise TypeError(
            f"with_respect_to must be an iterable of names, got the string {with_respect_to!r}: "
            f"pass ({with_respect_to!r},)"
        )
    names = iterated("with_respect_to", with_respect_to, "an iterable of names")
    for name in names:
        if not isinstance(name, str) or name not in _FIELDS:
            raise ValueError(
                f"with_respect_to must contain names from {', '.join(_FIELDS)}, got {shown(name)}"
            )
    return set(names)


def _arrays_of_out(out: tuple[Array | None, ...] | None) -> dict[str, Array | None]:
    if out is None:
        return dict.fromkeys(_FIELDS)
    if not isinstance(out, tuple) or len(out) != len(_FIELDS):
        given = type(out).__name__
        if isinstance(out, tuple):
            given = (
                f"a tuple of {len(out)}: use AttentionGradients, with None for gradients that are "
                "not needed"
            )
        raise TypeError(
            f"out must be an AttentionGradients or a tuple of {len(_FIELDS)} arrays or None, got "
            f"{given}"
        )
    return dict(zip(_FIELDS, out, strict=True))


def _float_mask(mask: ArrayLike | None) -> Array:
    if mask is None:
        raise ValueError("with_respect_to contains 'mask', but the call has no mask")
    part = parts_of(mask)[-1]
    bias = part if is_sparse(part) else np.asarray(readable("mask", part))
    if not is_floating(bias.dtype):
        raise TypeError(
            f"with_respect_to contains 'mask', which needs a float mask, got {bias.dtype}: a "
            "bool mask has no gradient"
        )
    return _native(bias)


def _option(name: str, options: Mapping[str, Any]) -> Array:
    given = options.get(name)
    if given is None:
        raise ValueError(f"with_respect_to contains {name!r}, but the call has no {name}")
    array = np.asarray(readable(name, given))
    return converted(array, np.float64) if array.dtype.kind in "iu" else _native(array)


def _native(array: Array) -> Array:
    """Return an array in native byte order, which its gradient uses too."""
    native = array.dtype.newbyteorder("=")
    return array if array.dtype.isnative else converted(array, native)


def summed_to(array: Array, shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
    """Sum an array in float64 over the axes along which an array of `shape` was broadcast to it."""
    if array.shape == shape:
        return array.astype(dtype, copy=False)
    missing = array.ndim - len(shape)
    axes = tuple(
        axis
        for axis in range(array.ndim)
        if axis < missing or shape[axis - missing] != array.shape[axis]
    )
    total = np.sum(array, axis=axes, dtype=np.float64, keepdims=True)
    return total.reshape(shape).astype(dtype, copy=False)
