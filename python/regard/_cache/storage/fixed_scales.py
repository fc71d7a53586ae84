"""Scales that never change: the factors of float8 numbers, for each layer and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from regard._arguments.arrays import as_array
from regard._cache.storage.types import SCALE_TYPE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_LEAST, _MOST = 2.0**-100, 2.0**100  # well within the range of float32


class FixedScales(NamedTuple):
    """The scales of keys and of values as the bytes of float32, which compare as a whole."""

    keys: bytes
    values: bytes

    @classmethod
    def of(cls, key: ArrayLike | None, value: ArrayLike | None, shape: tuple[int, int]) -> Self:
        """Return scales for (layers, kv_heads), 1 by default, or raise an error."""
        given = {"key_scales": key, "value_scales": value}
        return cls(*(_scales(name, scales, shape).tobytes() for name, scales in given.items()))

    def arrays(self, layers: int) -> tuple[Array, Array]:
        """Return the scales of keys and of values, (layers, kv_heads)."""
        keys, values = (np.frombuffer(part, SCALE_TYPE).reshape(layers, -1) for part in self)
        return keys, values


def _scales(name: str, given: ArrayLike | None, shape: tuple[int, int]) -> Array:
    scales = as_array(name, 1.0 if given is None else given)
    if scales.dtype.kind not in "fiu" and scales.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be an array of floats, got {scales.dtype}")
    with np.errstate(over="ignore"):
        scales = scales.astype(SCALE_TYPE)
    try:
        scales = np.broadcast_to(scales, shape)
    except ValueError:
        needed = f"broadcast to (layers, num_kv_heads), {shape}"
        if shape[0] == 1:
            needed = f"have shape ({shape[1]},)"
        raise ValueError(
            f"{name} must be a number, or {needed}, got shape {scales.shape}"
        ) from None
    wrong = scales[~((scales >= _LEAST) & (scales <= _MOST))]
    if wrong.size:
        raise ValueError(f"{name} must be from 2**-100 to 2**100, got {wrong[0]}")
    return np.ascontiguousarray(scales)
