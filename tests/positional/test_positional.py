"""Test sinusoidal encodings and ALiBi slopes."""

import numpy as np
import pytest

from reference import assert_same_bits
from regard import positional


def as_in_the_notebook(position, dim, base=10000):
    rates = 1 / np.power(base, (2 * (np.arange(dim) // 2)) / np.float32(dim))
    encoding = np.zeros(dim)
    encoding[0::2] = np.sin(position * rates[0::2])
    encoding[1::2] = np.cos(position * rates[1::2])
    return encoding


@pytest.mark.parametrize("base", [10000.0, 7, np.float32(0.5)])
@pytest.mark.parametrize("dim", [1, 2, 7, 64])
@pytest.mark.parametrize("length", [0, np.int8(1), 50])
def test_sinusoidal_is_the_formula(length, dim, base):
    actual = positional.sinusoidal(length, dim, base)
    wanted = np.array([as_in_the_notebook(p, dim, base) for p in range(length)])
    assert actual.dtype == np.float64
    assert actual.shape == (length, dim)
    np.testing.assert_allclose(actual, wanted.reshape(length, dim), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_encodings_are_rounded_once(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    encoding, slopes = positional.sinusoidal(1000, 33), positional.alibi_slopes(12)
    assert_same_bits(positional.sinusoidal(1000, 33, dtype=dtype), encoding.astype(dtype))
    assert_same_bits(positional.alibi_slopes(12, dtype=dtype), slopes.astype(dtype))


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (np.int8(16), np.arange(1, 17) / 2),
    ],
)
def test_alibi_slopes(heads, exponents):
    wanted = 2.0 ** -np.asarray(exponents, float)
    np.testing.assert_allclose(positional.alibi_slopes(heads), wanted, rtol=2**-51)
