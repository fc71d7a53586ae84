"""Weights in 8 bits: integers, and a scale for each group of 64 integers in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard import _core
from regard._arguments.arrays import as_array, is_floating
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    Weight: TypeAlias = "Array | QuantizedWeight"
    Array = NDArray[Any]
    Floats = NDArray[np.float32]

GROUP = 64  # as in cpp/problem/matmul.hpp
_LARGEST = 127
# The smallest nonzero scale. The kernels can divide it by 2**24 without loss.
_LEAST_SCALE = np.float32(2.0**-102)
_ELEMENTS_AT_ONCE = 1 << 18


@public
class QuantizedWeight:
    """A linear layer's weight in 8 bits, in about a quarter of the memory of float32.

    A weight ``w`` is stored as an int8 ``n`` such that ``w`` is nearly equal to ``n * scale``. The
    scale of 64 neighbors along the last axis is the largest of their magnitudes divided by 127, so
    the error of a weight is at most half a scale, 0.4% of the largest of its 64 neighbors.
    `regard.matmul` multiplies by ``weight.T`` and reads only the 8 bits; no float32 copy of the
    weight is made.

    Parameters
    ----------
    weight : array_like of float, shape (d_out, d_in)
        The weight in the layout of ``torch.nn.Linear``. It is first rounded to float32, and must be
        finite.

    Attributes
    ----------
    numbers : numpy.ndarray of int8, shape (d_out, d_in)
        The integers, from -127 to 127.
    scales : numpy.ndarray of float32, shape (d_out, ceil(d_in / 64))
        The factors of the integers.

    Raises
    ------
    TypeError
        If `weight` is not an array of floating-point numbers.
    ValueError
        If `weight` is not two-dimensional, or is not finite in float32.

    See Also
    --------
    matmul : accepts ``weight.T`` as `b`.
    regard.checkpoints.load_gguf : reads a model's weights in 8 bits.
    regard.models.load : loads a language model in 8 bits.

    Notes
    -----
    A scale is rounded up to 16 significant bits, so that ``n * scale`` is exact in float32, and a
    weight that was restored by `dequantize` is quantized to the same integers and scales again. No
    scale is below 2**-102, so weights of less than 2.5e-29 have fewer steps.

    Examples
    --------
    >>> import numpy as np
    >>> import regard
    >>> rng = np.random.default_rng(0)
    >>> weight = rng.standard_normal((96, 64), dtype=np.float32)
    >>> narrow = regard.QuantizedWeight(weight)
    >>> narrow
    QuantizedWeight(shape=(96, 64), nbytes=6528)
    >>> x = rng.standard_normal((2, 64), dtype=np.float32)
    >>> product = regard.matmul(x, narrow.T)
    >>> product.shape
    (2, 96)
    >>> np.array_equal(product, regard.matmul(x, narrow.dequantize().T))
    True
    >>> bool(np.abs(product - regard.matmul(x, weight.T)).max() < 0.15)
    True
    """

    __slots__ = ("numbers", "scales")
    __array_ufunc__ = None  # NumPy's @ would create an array of one object

    ndim = 2
    dtype = np.dtype(np.int8)
    numbers: NDArray[np.int8]
    scales: Floats

    def __init__(self, weight: ArrayLike) -> None:
        array = as_array("weight", weight)
        if not is_floating(array.dtype):
            raise TypeError(f"weight must be floating-point, got {array.dtype}")
        if array.ndim != 2:
            raise ValueError(f"weight must have shape (d_out, d_in), got shape {array.shape}")
        self.numbers, self.scales = _empty_parts(array.shape)
        for rows in row_blocks(array.shape):
            fill(self, rows, array[rows])

    @classmethod
    def from_parts(cls, numbers: ArrayLike, scales: ArrayLike) -> QuantizedWeight:
        """Create a weight from integers and scales, for example from a file.

        Parameters
        ----------
        numbers : array_like of int8, shape (d_out, d_in)
            The integers. They are not copied, and must not be written to afterward.
        scales : array_like of float32, shape (d_out, ceil(d_in / 64))
            The factors of the integers, each 0 or at least 2**-102 in magnitude. They are copied.

        Returns
        -------
        QuantizedWeight
            The weight ``numbers[i, j] * scales[i, j // 64]``.

        Raises
        ------
        TypeError
            If an array has another dtype.
        ValueError
            If the shapes disagree, or a scale is out of range or not finite.

        Examples
        --------
        >>> import numpy as np
        >>> import regard
        >>> narrow = regard.QuantizedWeight.from_parts(
        ...     np.array([[-2, 3]], np.int8), np.array([[0.5]], np.float32)
        ... )
        >>> narrow.dequantize()
        array([[-1. ,  1.5]], dtype=float32)
        """
        integers, steps = as_array("numbers", numbers), as_array("scales", scales)
        if integers.dtype != np.int8:
            raise TypeError(f"numbers must be int8, got {integers.dtype}")
        if steps.dtype.newbyteorder("=") != np.float32:
            raise TypeError(f"scales must be float32, got {steps.dtype}")
        if integers.ndim != 2:
            raise ValueError(f"numbers must have shape (d_out, d_in), got shape {integers.shape}")
        wanted = (integers.shape[0], -(-integers.shape[1] // GROUP))
        if steps.shape != wanted:
            raise ValueError(
                f"scales must have shape {wanted} for numbers of shape {integers.shape}, "
                f"got shape {steps.shape}"
            )
        sizes = np.abs(steps)
        is_good = np.isfinite(sizes) & ((sizes >= _LEAST_SCALE) | (sizes == 0))
        if not is_good.all():
            raise ValueError(
                "scales must be finite, and 0 or at least 2**-102 in magnitude, "
                f"got {steps[~is_good][0]}"
            )
        return _of(integers, np.array(steps.T, np.float32, order="C").T)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weight, (d_out, d_in)."""
        d_out, d_in = self.numbers.shape
        return d_out, d_in

    @property
    def nbytes(self) -> int:
        """The number of bytes of the integers and scales."""
        return self.numbers.nbytes + self.scales.nbytes

    @property
    def T(self) -> TransposedWeight:
        """The transpose, for `regard.matmul`."""
        return TransposedWeight(self)

    def dequantize(self) -> Floats:
        """Return the weight that the integers and scales represent.

        Returns
        -------
        numpy.ndarray of float32, shape (d_out, d_in)
            A new array.

        Examples
        --------
        >>> import regard
        >>> regard.QuantizedWeight([[127.0, 0.4, -3.6]]).dequantize()
        array([[127.,   0.,  -4.]], dtype=float32)
        """
        result = np.empty(self.shape, np.float32)
        for rows in row_blocks(self.shape):
            result[rows] = self[rows]
        return result

    def __getitem__(self, index: Any) -> Floats:
        """Return rows in float32, as indexing the first axis of ``dequantize()`` would."""
        if isinstance(index, tuple) or index is None or index is Ellipsis:
            raise TypeError(f"a QuantizedWeight can only be indexed by rows, got {index!r}")
        numbers: Floats = self.numbers[index].astype(np.float32)
        scales = self.scales[index]
        with np.errstate(over="ignore"):  # large scales of from_parts may produce infinity
            for group in range(scales.shape[-1]):
                numbers[..., group * GROUP : (group + 1) * GROUP] *= scales[..., group, None]
        return numbers

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Refuse to become an array of one object."""
        raise TypeError(
            "a QuantizedWeight is not an array: pass weight.T to regard.matmul as b, or call "
            "weight.dequantize()"
        )

    def __repr__(self) -> str:
        """Show the shape and the size."""
        return f"QuantizedWeight(shape={self.shape}, nbytes={self.nbytes})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle integers and scales."""
        return QuantizedWeight.from_parts, (self.numbers, self.scales)


class TransposedWeight:
    """A `QuantizedWeight` with swapped axes, as `regard.matmul` accepts it."""

    __slots__ = ("T",)
    __array_ufunc__ = None

    def __init__(self, weight: QuantizedWeight) -> None:
        self.T = weight

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (d_in, d_out)."""
        d_out, d_in = self.T.shape
        return d_in, d_out

    def __array__(self, *_: Any, **__: Any) -> Array:
        """Refuse to become an array of one object."""
        raise TypeError(
            "the transpose of a QuantizedWeight is not an array: pass it to regard.matmul as b, or "
            "call weight.dequantize()"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the weight, without a name of this module."""
        return getattr, (self.T, "T")

    def __repr__(self) -> str:
        """Show the weight whose transpose it is."""
        return f"{self.T!r}.T"


def multiply(a: Any, b: Any, out: Any, threads: int | None) -> Any:
    """Return ``a @ b``, or NotImplemented if an array must be converted first."""
    if isinstance(b, TransposedWeight):
        weight = b.T
        return _core.matmul_int8(a, weight.numbers.T, weight.scales.T, out, threads)
    return _core.matmul(a, b, out, threads)


def row_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield slices of the rows of a matrix, small enough for temporary copies."""
    rows, columns = shape
    step = max(1, _ELEMENTS_AT_ONCE // max(1, columns))
    for begin in range(0, rows, step):
        yield slice(begin, min(rows, begin + step))


def empty_weight(shape: tuple[int, ...]) -> QuantizedWeight:
    """Return a weight to be filled."""
    return _of(*_empty_parts(shape))


def _empty_parts(shape: tuple[int, ...]) -> tuple[NDArray[np.int8], Floats]:
    # The kernels read the scales of a group at once.
    rows, columns = shape
    groups = -(-columns // GROUP)
    return np.empty((rows, columns), np.int8), np.empty((groups, rows), np.float32).T


def fill(weight: QuantizedWeight, rows: slice, values: Array) -> None:
    """Quantize the values of some rows, which are few."""
    columns = weight.shape[1]
    groups = weight.scales.shape[1]
    padded = np.zeros((len(values), groups * GROUP), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        padded[:, :columns] = values
    grouped = padded.reshape(len(values), groups, GROUP)
    largest = np.maximum(grouped.max(-1, initial=0), -grouped.min(-1, initial=0))
    if not np.isfinite(largest).all():
        bad = padded[~np.isfinite(padded)][0]
        raise ValueError(f"weight must be finite in float32 to be kept as int8, got {bad}")
    scales = np.maximum(largest / np.float32(_LARGEST), _LEAST_SCALE)
    scales = ((scales.view(np.uint32) + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
    np.rint(np.divide(grouped, scales[..., None], out=grouped), out=grouped)
    weight.numbers[rows] = padded[:, :columns]
    weight.scales[rows] = scales


def _of(numbers: NDArray[np.int8], scales: Floats) -> QuantizedWeight:
    weight = QuantizedWeight.__new__(QuantizedWeight)
    weight.numbers, weight.scales = numbers, scales
    return weight
