"""Test rotary embedding against complex numbers in a wider type."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from drawn_problems import examples
from layouts import LAYOUTS
from reference import assert_same_bits
from regard import positional

rotary, rotary_cache = positional.rotary, positional.rotary_cache


def storage(name):
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def normal(shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(storage(dtype))


def eps_of(dtype):
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def halves(columns, rotary_dim, interleaved):
    numbers = list(range(columns))[:rotary_dim]
    half = len(numbers) // 2
    return (numbers[::2], numbers[1::2]) if interleaved else (numbers[:half], numbers[half:])


def turned(x, positions, frequencies, interleaved=False):
    """Rotate each pair as a complex number, multiplied by a number of modulus 1."""
    result = x.astype(np.longdouble)
    real, imaginary = halves(x.shape[-1], 2 * len(frequencies), interleaved)
    angle = np.asarray(positions).astype(np.longdouble)[..., None] * frequencies
    if angle.ndim > 2:
        angle = angle[..., None, :, :]
    product = (result[..., real] + 1j * result[..., imaginary]) * np.exp(1j * angle)
    result[..., real], result[..., imaginary] = product.real, product.imag
    return result


def powers(rotary_dim, base=10000.0):
    return np.longdouble(base) ** (-np.arange(0, rotary_dim, 2) / np.longdouble(rotary_dim))


def assert_turned(actual, x, positions, frequencies, interleaved=False):
    """Allow the error that rounding explains.

    A column is a cos - b sin in float64 or, for all narrower types, in float32: cosine, product
    and difference are rounded, 1.5 eps (|a| + |b|) together. Angles are float64: rounding of the
    exponent (times log base < 12), the power and the product moves them by less than 8 eps of
    themselves. Then the result is rounded to its type.
    """
    assert actual.dtype == x.dtype
    assert actual.shape == x.shape
    exact = turned(x, positions, frequencies, interleaved)
    real, imaginary = halves(x.shape[-1], 2 * len(frequencies), interleaved)
    wide = np.abs(x.astype(np.longdouble))
    computed = np.finfo(np.float64 if x.dtype == np.float64 else np.float32).eps
    largest = np.abs(positions).astype(float).max(initial=0) * np.abs(frequencies).max(initial=0)
    limit = np.zeros(x.shape)
    both = wide[..., real] + wide[..., imaginary]
    for columns in (real, imaginary):
        limit[..., columns] = both * (1.5 * computed + 8 * np.finfo(np.float64).eps * largest)
    if x.dtype.itemsize < 4:
        limit += eps_of(x.dtype) * np.abs(exact).astype(float)
    assert (np.abs(actual.astype(np.longdouble) - exact) <= limit).all()


TYPES = ["float16", "bfloat16", "float32", "float64"]
SHAPES = [
    ((5, 8), None),
    ((1, 8), [10**9]),  # angles in float32 would be off by 60
    ((3, 2, 5, 8), None),
    ((3, 2, 5, 8), [[7, 3, 0, -1, 2], [5, 5, 5, 5, 5], [9, 8, 7, 6, 100000]]),
    ((3, 2, 5, 8), [[4, 3, 2, 1, 0]]),
    ((2, 3, 4, 5, 8), np.arange(30).reshape(2, 3, 5)),
    ((2, 3, 4, 5, 8), np.arange(15, dtype=np.uint8).reshape(3, 5)),
    ((2, 3, 4, 5, 8), np.arange(10).reshape(2, 1, 5)),
    ((2, 0, 8), None),
    ((0, 2, 5, 8), np.zeros((0, 5), int)),
]


@examples(250)
@hypothesis.given(st.data())
def test_rotary_is_a_complex_product(data):
    """In any layout, with a base or frequencies or a cache, to a new array or a given one."""
    dtype = storage(data.draw(st.sampled_from(TYPES)))
    shape, positions = data.draw(st.sampled_from(SHAPES))
    head_dim, rotary_dim = data.draw(st.sampled_from([(2, 2), (8, 4), (7, 6), (80, 32), (8, 8)]))
    interleaved = data.draw(st.booleans())
    base = data.draw(st.sampled_from([None, 10000, 500000.0, 0.5, np.float32(100)]))
    x = normal((*shape[:-1], head_dim), dtype)
    where = np.arange(shape[-2]) if positions is None else np.asarray(positions)
    frequencies = powers(rotary_dim, 10000.0 if base is None else base)
    options = {"rotary_dim": rotary_dim, "base": base}
    if data.draw(st.booleans()):
        options = {"inverse_frequencies": frequencies.astype(float).tolist()}
    actual = rotary(x, positions, interleaved=interleaved, **options)
    assert_turned(actual, x, where, frequencies, interleaved)
    assert_same_bits(actual[..., rotary_dim:], x[..., rotary_dim:])

    layout = data.draw(st.sampled_from(list(LAYOUTS)))
    laid = LAYOUTS[layout](x)
    assert_same_bits(rotary(laid, positions, interleaved=interleaved, **options), actual)
    if layout not in ("read_only", "byte_swapped"):
        room = LAYOUTS[layout](np.zeros_like(x))
        options["out"] = room
        assert rotary(x, positions, interleaved=interleaved, **options) is room
        assert_same_bits(room, actual)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_row_alone_has_the_bits_of_all(dtype, interleaved):
    """Decoding row by row gives the bits of rotating the whole sequence at once."""
    x = normal((2, 3, 37, 24), dtype)
    whole = rotary(x, interleaved=interleaved)
    for i in range(37):
        alone = rotary(x[:, :, i : i + 1], [i], interleaved=interleaved)
        assert_same_bits(alone, whole[:, :, i : i + 1])
    assert_same_bits(rotary(x[1, 2], interleaved=interleaved), whole[1, 2])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("where", [np.s_[:36], np.s_[6:], np.s_[4:40], np.s_[36:0:-1]])
def test_out_may_lie_over_x(where, interleaved):
    memory = normal((42,))
    x, out = memory[:36].reshape(6, 6), memory[where].reshape(6, 6)
    assert np.shares_memory(x, out)
    wanted = rotary(x.copy(), rotary_dim=4, interleaved=interleaved)
    rotary(x, rotary_dim=4, interleaved=interleaved, out=out)
    assert_same_bits(out, wanted)


def test_nan_and_infinity_stay_in_their_pair_and_float16_overflows():
    x = normal((2, 8), "float32")
    x[1, 2], x[1, 5] = np.nan, np.inf
    actual = rotary(x)
    assert np.isnan(actual[1, [2, 6]]).all()
    assert np.isinf(actual[1, [1, 5]]).all()
    assert np.isfinite(actual[1, [0, 3, 4, 7]]).all()
    assert np.isfinite(actual[0]).all()
    x = np.full((1, 2), 60000, np.float16)
    assert_same_bits(rotary(x, [-1])[0, 0], np.float16(np.inf))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kept_in", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_cache_gives_the_bits_of_the_positions(dtype, kept_in, interleaved):
    x = normal((2, 3, 5, 8), dtype)
    table = rotary_cache(50, 6, base=500.0, dtype=kept_in)
    options = {"interleaved": interleaved}
    for positions in (None, [0, 49, 3, 3, 2], [[9, 0, 1, 2, 3], [7, 6, 5, 4, 3]]):
        wanted = rotary(x, positions, base=500.0, rotary_dim=6, **options)
        assert_same_bits(rotary(x, positions, cache=table, **options), wanted)
        assert_same_bits(rotary(x, positions, cache=table, rotary_dim=6, **options), wanted)
        if np.ndim(positions) == 2:
            rows = rotary_cache(positions, 6, base=500.0, dtype=kept_in)
            assert_same_bits(rotary(x, cache=rows, **options), wanted)
            rows = tuple(part[np.array(positions)] for part in table)
            assert_same_bits(rotary(x, cache=[part.tolist() for part in rows], **options), wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_rotary_cache_is_rounded_from_float64(dtype):
    dtype = storage(dtype)
    angles = np.arange(1000)[:, None] * (1 / np.power(10000.0, np.arange(0, 32, 2) / 32))
    for actual, exact in zip(rotary_cache(1000, 32, dtype=dtype), (np.cos, np.sin), strict=True):
        assert_same_bits(actual, exact(angles).astype(dtype))
