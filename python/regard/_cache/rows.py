"""Keys and values as the kernels read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from regard import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from regard._cache.geometry import Geometry

    Array = NDArray[Any]
    DType = np.dtype[Any]
    Make = Callable[[tuple[int, ...], DType], Array]

SCALE_TYPE = np.dtype(np.float32)
_MOST_BYTES = 2**63 - 1


class Rows:
    """A row of numbers for each head and slot of each batch entry, or of each page.

    Where numbers are stored in 8 bits, each row has a scale that they are multiplied by, and keys
    are rotated: see `quantise.py`.
    """

    __slots__ = ("arrays",)

    def __init__(self, *arrays: Array) -> None:
        # (entries or pages, kv_heads, slots, dim) each, and without dim where it is a scale.
        self.arrays = arrays

    @classmethod
    def made(cls, geometry: Geometry, outer: int, slots: int, make: Make) -> Self:
        """Return rows for so many slots of `outer` entries or pages, whose arrays are made so."""
        return cls(*(make(shape, dtype) for shape, dtype in cls.forms(geometry, outer, slots)))

    @staticmethod
    def forms(geometry: Geometry, outer: int, slots: int) -> list[tuple[tuple[int, ...], DType]]:
        """Return shape and type of every array, or raise MemoryError where none can be so large."""
        axes = (outer, geometry.kv_heads, slots)
        dims = (geometry.head_dim, geometry.value_dim)
        forms: list[tuple[tuple[int, ...], DType]]
        forms = [((*axes, dim), geometry.dtype) for dim in dims]
        forms += [(axes, SCALE_TYPE)] * 2 if geometry.is_quantised else []
        for shape, dtype in forms:
            # NumPy does not count an axis of 0, and nor do we.
            size = math.prod(length for length in shape if length) * dtype.itemsize
            if size > _MOST_BYTES:
                raise MemoryError(
                    f"no memory for {size} bytes, {dtype.name} of shape {shape}: an array has at "
                    f"most {_MOST_BYTES}"
                )
        return forms

    @property
    def key(self) -> Array:
        """The keys."""
        return self.arrays[0]

    @property
    def value(self) -> Array:
        """The values."""
        return self.arrays[1]

    @property
    def key_scales(self) -> Array | None:
        """What the keys are multiplied by."""
        return self.arrays[2] if len(self.arrays) > 2 else None

    @property
    def value_scales(self) -> Array | None:
        """What the values are multiplied by."""
        return self.arrays[3] if len(self.arrays) > 2 else None

    @property
    def nbytes(self) -> int:
        """How large they are together."""
        return sum(array.nbytes for array in self.arrays)

    def part(self, where: Any) -> Rows:
        """Return the same part of every array."""
        return Rows(*(array[where] for array in self.arrays))

    def put(self, where: Any, rows: Rows) -> None:
        """Write the part of every array that slices and integers name."""
        for array, new in zip(self.arrays, rows.arrays, strict=True):
            part = array[where]
            if not _core.convert_rows(new, part):
                part[...] = new

    def put_at(self, where: Any, rows: Rows) -> None:
        """Write the elements of every array that integer arrays name."""
        for array, new in zip(self.arrays, rows.arrays, strict=True):
            array[where] = new
