"""Check the requested gradients of a call, and deliver them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import (
    check_out,
    converted,
    is_floating,
    shares_memory,
    shown,
)
from regard._arguments.foreign import readable
from regard._arguments.masks import is_sparse, parts_of
from regard._arguments.option_table import DIFFERENTIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Array = NDArray[Any]

_NAMES = ("query", "key", "value", "mask", *DIFFERENTIABLE)
# In the order of the arguments and the results of the kernels.
_FLAGS = ("query", "key", "value", "mask", "alibi_slopes", "sinks", "distance_bias")


class GradientRequest(NamedTuple):
    """The checked requests of a call."""

    flags: tuple[bool, ...]
    """Which gradients are requested, in the order of the kernels' results."""
    out: tuple[Array | None, ...] | None
    """The caller's arrays for the gradients of query, key and value."""
    slopes: Array | None
    """The ALiBi slopes, if their gradient is requested."""
    sinks: Array | None
    """The sinks, if their gradient is requested."""
    sums: dict[str, tuple[DTypeLike, Array | None]]
    """The type and the caller's array of the gradients that Python sums."""

    def deliver(self, name: str, gradient: Array) -> Array:
        """Return a gradient in its type, in the caller's array if there is one."""
        dtype, out = self.sums[name]
        if out is None:
            return gradient.astype(dtype, copy=False)
        np.copyto(out, gradient, casting="unsafe")
        return out


def wanted_gradients(
    with_respect_to: Iterable[str],
    fields: tuple[str, ...],
    mask: ArrayLike | None,
    options: Mapping[str, Any],
    out: tuple[Array | None, ...] | None,
    inputs: Mapping[str, Any],
) -> GradientRequest:
    """Check `with_respect_to` and `out`, or raise TypeError or ValueError."""
    names = _names(with_respect_to, fields)
    arrays = _arrays_of_out(out, fields)
    likes: dict[str, Array] = {}
    if "mask" in names:
        likes["mask"] = _float_mask(mask)
    for name in DIFFERENTIABLE:
        if name in names:
            likes[name] = _option(name, options)
    if "sinks" in likes:
        for name in _NAMES[:3]:
            if _overlap(arrays[name], likes["sinks"]):
                raise ValueError(
                    f"out.{name} must not overlap sinks: they would be overwritten; pass another "
                    "array"
                )
    others = {**inputs, **likes, **{f"out.{name}": arrays[name] for name in _NAMES[:3]}}
    sums: dict[str, tuple[DTypeLike, Array | None]] = {}
    for name, like in likes.items():
        sums[name] = like.dtype, _checked_out(name, arrays[name], like, others)
        others[f"out.{name}"] = arrays[name]
    return GradientRequest(
        tuple(name in names for name in _FLAGS),
        None if out is None else tuple(arrays[name] for name in _NAMES[:3]),
        likes.get("alibi_slopes"),
        likes.get("sinks"),
        sums,
    )


def _names(with_respect_to: Iterable[str], fields: tuple[str, ...]) -> set[str]:
    if isinstance(with_respect_to, str):
        raise TypeError(
            f"with_respect_to must be an iterable of names, got the string {with_respect_to!r}: "
            f"pass ({with_respect_to!r},)"
        )
    try:
        names = list(with_respect_to)
    except TypeError:
        raise TypeError(
            f"with_respect_to must be an iterable of names, got {type(with_respect_to).__name__}"
        ) from None
    for name in names:
        if not isinstance(name, str) or name not in fields:
            raise ValueError(
                f"with_respect_to must contain names from {', '.join(fields)}, got {shown(name)}"
            )
    return set(names)


def _arrays_of_out(
    out: tuple[Array | None, ...] | None, fields: tuple[str, ...]
) -> dict[str, Array | None]:
    if out is None:
        return dict.fromkeys(fields)
    if not isinstance(out, tuple) or len(out) != len(fields):
        given = type(out).__name__
        if isinstance(out, tuple):
            given = (
                f"a tuple of {len(out)}: use AttentionGradients, with None for gradients that are "
                "not needed"
            )
        raise TypeError(
            f"out must be an AttentionGradients or a tuple of {len(fields)} arrays or None, got "
            f"{given}"
        )
    return dict(zip(fields, out, strict=True))


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


def _checked_out(
    name: str, out: Array | None, like: Array, others: Mapping[str, Any]
) -> Array | None:
    if out is None:
        return None
    check_out(f"out.{name}", out, like.dtype, like.shape)
    for argument, other in others.items():
        if any(_overlap(out, part) for part in parts_of(other)):
            reason = "it would be overwritten; pass another array"
            if argument.startswith("out."):
                reason = "two gradients cannot share memory"
            raise ValueError(f"out.{name} must not overlap {argument}: {reason}")
    return out


def _overlap(out: Any, other: Any) -> bool:
    if not isinstance(out, np.ndarray) or not isinstance(other, np.ndarray):
        return False
    return shares_memory(out, other)
