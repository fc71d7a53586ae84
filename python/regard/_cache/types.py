"""The types in which caches store keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike

    DType = np.dtype[Any]

SCALE_TYPE = np.dtype(np.float32)
# Kernels read numbers of float8 divided by this (cpp/simd/half.hpp).
FLOAT8_UNITS = SCALE_TYPE.type(2**8)
GROUP = 32  # numbers of q4_1 that share a scale and a minimum
_WANTED = "float16, bfloat16, float32, float64, int8, float8_e4m3fn or q4_1"


class StoredType(NamedTuple):
    """A type of keys and values, and the arrays that hold it."""

    name: str
    numbers: DType  # of the array of numbers
    numbers_per_item: int = 1
    # The parts that share a scale: each of the "rows" has a scale, each of the "heads" has a scale
    # that never changes, and each of the "groups" of a row has a scale and a minimum.
    scaled: str | None = None
    form: str = ""  # its name in _core.quantize_rows
    note: str = ""  # its description in `explain`

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> DType | str:
        """The type for users: a name if NumPy has no such type."""
        return self.numbers if self.scaled in (None, "rows") else self.name

    @property
    def is_quantized(self) -> bool:
        """Whether numbers are stored with scales, and keys are rotated."""
        return self.scaled is not None

    def forms(
        self, kv_heads: int, tokens: int, dim: int
    ) -> Iterator[tuple[tuple[int, ...], DType]]:
        """Yield shape and dtype of a page's arrays for keys or values: numbers, and scales."""
        numbers, scales = self.items(dim)
        yield (kv_heads, tokens, numbers), self.numbers
        if self.scaled == "rows":
            yield (kv_heads, tokens), SCALE_TYPE
        elif self.scaled == "groups":
            yield (kv_heads, tokens, scales), np.dtype(np.float16)

    def items(self, dim: int) -> tuple[int, int]:
        """Return the number of items of a row, and of its scales, 0 without a last axis."""
        return dim // self.numbers_per_item, 2 * (dim // GROUP) if self.scaled == "groups" else 0

    def check_dim(self, name: str, dim: int) -> None:
        """Raise ValueError if rows of this length cannot be stored."""
        if self.scaled == "groups" and dim % GROUP:
            raise ValueError(
                f"{name} must be a multiple of {GROUP} with dtype {self.name!r}, got {dim}"
            )


_BYTES = np.dtype(np.uint8)
_QUANTIZED = {
    each.name: each
    for each in (
        StoredType(
            "int8",
            np.dtype(np.int8),
            scaled="rows",
            form="int8",
            note="8-bit integers, with a scale for each row",
        ),
        StoredType(
            "float8_e4m3fn",
            _BYTES,
            scaled="heads",
            form="float8",
            note="stored as float8_e4m3fn, with a scale for each head",
        ),
        StoredType(
            "q4_1",
            _BYTES,
            numbers_per_item=2,
            scaled="groups",
            form="q4_1",
            note="4-bit integers, with a scale and a minimum for every 32 numbers",
        ),
    )
}
_PLAIN = ("float16", "bfloat16", "float32", "float64")
STORED_TYPES = (*_PLAIN, *_QUANTIZED)


def stored_type(dtype: DTypeLike) -> StoredType:
    """Return the storage type for a dtype or a name, or raise TypeError."""
    if isinstance(dtype, str) and dtype in _QUANTIZED:
        return _QUANTIZED[dtype]
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError("dtype bfloat16 needs the ml_dtypes package") from None
        dtype = ml_dtypes.bfloat16
    wanted = dtype_of("dtype", dtype, _WANTED)
    if dtype is None or wanted.name not in STORED_TYPES:
        raise TypeError(f"dtype must be {_WANTED}, got {None if dtype is None else wanted}")
    plain = StoredType(wanted.name, wanted.newbyteorder("="))
    return _QUANTIZED.get(wanted.name, plain)
