"""Draw PyTorch's CPU random stream with NumPy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
from numpy.random import MT19937, RandomState

from regard._arguments.arrays import single_or_double
from regard._arguments.numbers import count, flag, real_number
from regard._runtime.public import public

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray

    FloatArray: TypeAlias = NDArray[np.floating[Any]]
    Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]

# From this many elements on, PyTorch draws all uniforms first and transforms them in blocks.
_BLOCK = 16


@public
class TorchGenerator:
    """Random numbers as PyTorch draws them on the CPU after ``torch.manual_seed(seed)``.

    The stream is MT19937: one 32-bit draw for a float32, and two, the high word first, for a
    float64. Methods that are called in the order of a PyTorch program return the numbers of that
    program: `rand`, `uniform` and `linear` are bitwise equal. `randn` is bitwise equal below 16
    elements, and equal up to the rounding of the logarithm, the sine and the cosine from 16
    elements on.

    Parameters
    ----------
    seed : int
        From ``-2**63`` to ``2**64 - 1``, as in PyTorch. A negative seed counts down from ``2**64``.
        Only the low 32 bits of a seed affect the stream.

    Raises
    ------
    TypeError
        If `seed` is not an integer.
    ValueError
        If `seed` is out of range.

    Notes
    -----
    PyTorch kernels use fused multiply-add if the CPU supports it, and `uniform` and `linear`
    reproduce this. If PyTorch is forced to use its oldest kernels (``ATEN_CPU_CAPABILITY=default``
    on x86), its own numbers differ in the last bit in these two methods, and by about 1e-6 in
    `randn`.

    Examples
    --------
    >>> import regard
    >>> generator = regard.TorchGenerator(123)
    >>> generator.randn(3, 2).round(4)
    array([[-0.1115,  0.1204],
           [-0.3696, -0.2404],
           [-1.1969,  0.2093]], dtype=float32)
    >>> generator.rand(2).shape
    (2,)
    """

    def __init__(self, seed: SupportsIndex) -> None:
        self._seed = count("seed", seed, -(2**63), 2**64 - 1)
        # NumPy promises that RandomState(seed) is init_genrand(seed), which is PyTorch's seeding.
        state: Any = RandomState(self._seed % 2**32).get_state(legacy=False)
        self._bits = MT19937()
        self._bits.state = state
        self._second_of_pair: float | None = None

    def __repr__(self) -> str:
        return f"TorchGenerator({self._seed})"

    def rand(
        self, *shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Draw from the uniform distribution on [0, 1), as ``torch.rand`` does.

        A float32 is the low 24 bits of a 32-bit draw times ``2**-24``, a float64 the low 53 bits
        of a 64-bit draw times ``2**-53``.

        Parameters
        ----------
        *shape : ints or one sequence of ints
            The shape; without arguments, a single number.
        dtype : dtype, optional
            float32 or float64.

        Returns
        -------
        numpy.ndarray
            Array of `shape` and `dtype`. An empty array draws nothing from the stream.

        Raises
        ------
        TypeError
            If `shape` is not made of integers or `dtype` is neither float32 nor float64.
        ValueError
            If a length is negative.

        Examples
        --------
        >>> import regard
        >>> regard.TorchGenerator(123).rand(3, 2).round(4)
        array([[0.2961, 0.5166],
               [0.2517, 0.6886],
               [0.074 , 0.8665]], dtype=float32)
        """
        lengths = _shape(shape)
        return self._unit(math.prod(lengths), single_or_double("dtype", dtype)).reshape(lengths)

    def randn(
        self, *shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = np.float32
    ) -> FloatArray:
        """Draw from the standard normal distribution, as ``torch.randn`` does.

        The method is the Box-Muller transform. Below 16 elements it makes a pair of values from two
        float64 uniforms; if the second of a pair is left over, it begins the next such call,
        regardless of draws between the two calls. From 16 elements on, it transforms uniforms of
        `dtype` in blocks of 16, the first 8 with the last 8; if the last block is not full, the
        last 16 values are drawn again.

        Parameters
        ----------
        *shape, dtype
            As for `rand`.

        Returns
        -------
        numpy.ndarray
            Array of `shape` and `dtype`. An empty array draws nothing from the stream.

        Raises
        ------
        TypeError, ValueError
            As for `rand`.

        Examples
        --------
        >>> import regard
        >>> regard.TorchGenerator(123).randn(2, 2).round(4)
        array([[-0.1115,  0.1204],
               [-0.3696, -0.2404]], dtype=float32)
        """
        lengths = _shape(shape)
        to = single_or_double("dtype", dtype)
        size = math.prod(lengths)
        if size < _BLOCK:
            values: FloatArray = np.array([self._normal() for _ in range(size)], to)
        else:
            values = self._unit(size, to)
            whole = size - size % _BLOCK
            values[:whole] = _box_muller(values[:whole])
            if whole < size:
                values[-_BLOCK:] = _box_muller(self._unit(_BLOCK, to))
        return values.reshape(lengths)

    def uniform(
        self,
        low: SupportsFloat,
        high: SupportsFloat,
        shape: SupportsIndex | Sequence[SupportsIndex] = (),
        dtype: DTypeLike = np.float32,
    ) -> FloatArray:
        """Draw from the uniform distribution on [low, high), as ``Tensor.uniform_`` does.

        Each value is ``rand * (high - low) + low`` in `dtype`, rounded once after the difference. A
        value that rounds up to `high` becomes `low`, as in current PyTorch versions. Old versions
        keep `high`.

        Parameters
        ----------
        low, high : float
            The ends, rounded to `dtype`.
        shape : int or sequence of ints, optional
            The shape; a single number by default.
        dtype : dtype, optional
            float32 or float64.

        Returns
        -------
        numpy.ndarray
            Array of `shape` and `dtype`. An empty array draws nothing from the stream.

        Raises
        ------
        TypeError
            If an end is not a real number, `shape` is not made of integers or `dtype` is neither
            float32 nor float64.
        ValueError
            If `low` is above `high`, an end or their distance is not finite in `dtype`, or a
            length is negative.

        Examples
        --------
        >>> import regard
        >>> regard.TorchGenerator(123).uniform(-1, 1, 3).round(4)
        array([-0.4078,  0.0331, -0.4967], dtype=float32)
        """
        to = single_or_double("dtype", dtype)
        lengths = _shape((shape,))
        start = _finite("low", real_number("low", low), to)
        stop = _finite("high", real_number("high", high), to)
        if start > stop:
            raise ValueError(f"low must not be above high, got {low} and {high}")
        width = _finite("high - low", stop - start, to)
        values = _multiply_add(self._unit(math.prod(lengths), to), width, start)
        values[values == stop] = start
        return values.reshape(lengths)

    def linear(
        self,
        d_in: SupportsIndex,
        d_out: SupportsIndex,
        bias: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> tuple[FloatArray, FloatArray | None]:
        """Draw the parameters of a linear layer, as ``torch.nn.Linear(d_in, d_out)`` does.

        The weight is ``kaiming_uniform_(a=sqrt(5))``, which is uniform on [-b, b) with
        ``b = 1 / sqrt(d_in)``; the bias, drawn after it, has the same distribution.

        Parameters
        ----------
        d_in, d_out : int
            The numbers of input and output features.
        bias : bool, optional
            Whether the layer has a bias. Unlike in PyTorch, the default is no bias.
        dtype : dtype, optional
            float32 or float64.

        Returns
        -------
        weight : numpy.ndarray
            Shape ``(d_out, d_in)``: the layer is ``x @ weight.T + bias``.
        bias : numpy.ndarray or None
            Shape ``(d_out,)``, or None without a bias.

        Raises
        ------
        TypeError
            If `d_in` or `d_out` is not an integer, `bias` is not a bool or `dtype` is neither
            float32 nor float64.
        ValueError
            If `d_in` or `d_out` is less than 1.

        Examples
        --------
        >>> import regard
        >>> weight, bias = regard.TorchGenerator(123).linear(3, 2, bias=True)
        >>> weight.round(4)
        array([[-0.2354,  0.0191, -0.2867],
               [ 0.2177, -0.4919,  0.4232]], dtype=float32)
        >>> bias.round(4)
        array([-0.4196, -0.459 ], dtype=float32)
        """
        d_in = count("d_in", d_in, minimum=1)
        d_out = count("d_out", d_out, minimum=1)
        bias = flag("bias", bias)
        # PyTorch's gain and fan, step by step. The bound of the bias is rounded differently.
        gain = math.sqrt(2 / (1 + math.sqrt(5) ** 2))
        bound = math.sqrt(3) * (gain / math.sqrt(d_in))
        weight = self.uniform(-bound, bound, (d_out, d_in), dtype)
        if not bias:
            return weight, None
        bound = 1 / math.sqrt(d_in)
        return weight, self.uniform(-bound, bound, d_out, dtype)

    def _unit(self, size: int, dtype: np.dtype[Any]) -> FloatArray:
        if dtype == np.float32:
            low_24 = self._bits.random_raw(size) & np.uint64(2**24 - 1)
            return low_24.astype(np.float32) * np.float32(2**-24)
        words = self._bits.random_raw(2 * size)
        low_53 = ((words[0::2] << np.uint64(32)) | words[1::2]) & np.uint64(2**53 - 1)
        return low_53.astype(np.float64) * 2.0**-53

    def _normal(self) -> float:
        if self._second_of_pair is not None:
            value, self._second_of_pair = self._second_of_pair, None
            return value
        # The C library's functions, as in PyTorch: NumPy's may round differently.
        u1, u2 = self._unit(2, np.dtype(np.float64)).tolist()
        radius = math.sqrt(-2 * math.log1p(-u2))
        angle = 2 * math.pi * u1
        self._second_of_pair = radius * math.sin(angle)
        return radius * math.cos(angle)


def _box_muller(uniforms: FloatArray) -> FloatArray:
    dtype = uniforms.dtype.type
    blocks = uniforms.reshape(-1, 2, _BLOCK // 2)
    # The functions are computed in float64 and rounded: NumPy's float32 functions depend on the
    # CPU.
    log = np.log(1 - blocks[:, 0], dtype=np.float64).astype(dtype)
    radius = np.sqrt(dtype(-2) * log)
    angle = dtype(2 * math.pi) * blocks[:, 1]
    normals = np.empty_like(blocks)
    normals[:, 0] = radius * np.cos(angle, dtype=np.float64).astype(dtype)
    normals[:, 1] = radius * np.sin(angle, dtype=np.float64).astype(dtype)
    return normals.reshape(-1)


def _multiply_add(values: FloatArray, factor: float, addend: float) -> FloatArray:
    if values.dtype == np.float32:
        return (values.astype(np.float64) * factor + addend).astype(np.float32)
    # Dekker's product and Knuth's sum recover the rounding errors. The factor's exponent is split
    # off, because splitting a large factor would overflow.
    mantissa, exponent = math.frexp(factor)
    shifted = math.ldexp(addend, -exponent)
    product = values * mantissa
    high, low = _split(values)
    mantissa_high, mantissa_low = _split(np.float64(mantissa))
    product_lost = low * mantissa_low - (
        ((product - high * mantissa_high) - low * mantissa_high) - high * mantissa_low
    )
    total = product + shifted
    back = total - product
    total_lost = (product - (total - back)) + (shifted - back)
    result: FloatArray = np.ldexp(total + (product_lost + total_lost), exponent)
    return result


def _split(values: Any) -> tuple[Any, Any]:
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high


def _shape(shape: tuple[Shape, ...]) -> tuple[int, ...]:
    lengths: Any = shape
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        lengths = shape[0]
    return tuple(count("shape", length) for length in lengths)


def _finite(name: str, value: float, dtype: np.dtype[Any]) -> float:
    with np.errstate(over="ignore"):
        rounded = float(dtype.type(value))
    if not math.isfinite(rounded):
        raise ValueError(f"{name} must be finite in {dtype}, got {value}")
    return rounded
