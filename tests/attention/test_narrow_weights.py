"""matmul with weights of 16 and 8 bits has the bits of the product with the same floats."""

import copy
import pickle

import numpy as np
import pytest

import regard
from element_types import type_named
from messages import says
from reference import assert_same_bits

KINDS = ["float16", "bfloat16", "int8"]
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 50)
SHAPES = [
    *((1, 1), (16, 64), (17, 63), (7, 130), (65, 65), (130, 257), (577, 96), (3, 1000)),
    *((0, 5), (5, 0), (48, 128), (33, 191)),
]


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def narrow(weight, kind):
    return regard.QuantizedWeight(weight) if kind == "int8" else weight.astype(type_named(kind))


def floats_of(weight):
    if isinstance(weight, regard.QuantizedWeight):
        return weight.dequantize()
    return weight.astype(np.float32)


def as_written(weight):
    """Return the values of a weight, in float64 and computed without the class."""
    if not isinstance(weight, regard.QuantizedWeight):
        return weight.astype(np.float64)
    scales = np.repeat(weight.scales.astype(np.float64), 64, axis=1)
    return weight.numbers * scales[:, : weight.shape[1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_is_that_of_the_floats(shape, kind, target):
    weight = narrow(normal(shape), kind)
    floats = floats_of(weight)
    for rows in ROWS:
        a = normal((rows, shape[1]), rows)
        actual = regard.matmul(a, weight.T)
        exact = a.astype(np.float64) @ as_written(weight).T
        # Blocks of 128 terms are summed in order, and their sums are then added in order. A step
        # rounds once, or twice without fma.
        steps = 2 * min(shape[1], 128) + shape[1] // 128 + 1
        sizes = np.abs(a).astype(np.float64) @ np.abs(as_written(weight)).T
        assert actual.dtype == np.float32
        assert (np.abs(actual - exact) <= steps * 2.0**-24 * sizes).all()
        assert_same_bits(actual, regard.matmul(a, floats.T))
        wide = regard.matmul(a.astype(np.float64), weight.T)
        assert_same_bits(wide, regard.matmul(a.astype(np.float64), floats.T.astype(np.float64)))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_rows_threads_or_strides(kind, target, layer):
    weight = narrow(normal((300, 700)), kind)
    a = normal((70, 700), 1)
    whole = regard.matmul(a, weight.T, threads=1)
    apart = np.repeat(a, 2, axis=1)[:, ::2]
    far = np.zeros((70, 2000), np.float32)
    far[:, :700] = a
    for threads in (1, 2, 3, 8):
        for other in (a, np.asfortranarray(a), apart, far[:, :700], a[::-1][::-1]):
            assert_same_bits(regard.matmul(other, weight.T, threads=threads), whole)
        for rows in (slice(0, 1), slice(3, 5), slice(60, 68), slice(20, 61)):
            assert_same_bits(regard.matmul(a[rows], weight.T, threads=threads), whole[rows])
            assert_same_bits(regard.matmul(apart[rows], weight.T, threads=threads), whole[rows])
    batch = np.stack([a, a[::-1]])
    assert_same_bits(regard.matmul(batch, weight.T), np.stack([whole, whole[::-1]]))
    assert_same_bits(regard.matmul(a[0], weight.T), whole[0])
    out = np.empty((300, 70), np.float32).T
    assert regard.matmul(a, weight.T, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), whole)


@pytest.mark.parametrize("kind", [None, "float16", "int8"])
def test_long_rows_have_the_same_bits_for_any_number_of_rows_and_threads(kind, target):
    """The rows are so long that a task is done in pieces, whose length depends on the rows."""
    weight = normal((400, 40000))
    weight = weight if kind is None else narrow(weight, kind)
    a = normal((8, 40000), 1)
    whole = regard.matmul(a, weight.T, threads=1)
    assert_same_bits(regard.matmul(a, weight.T, threads=2), whole)
    assert_same_bits(regard.matmul(np.concatenate([a, a]), weight.T)[:8], whole)
    for row in range(8):
        assert_same_bits(regard.matmul(a[row : row + 1], weight.T, threads=1)[0], whole[row])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", ["rows", "columns", "neither", "reversed"])
def test_arrays_of_16_bits_in_any_order(order, kind, target):
    b = normal((130, 75)).astype(type_named(kind))
    floats = b.astype(np.float32)
    if order == "columns":
        b = np.asfortranarray(b)
    elif order == "neither":
        b = np.repeat(np.repeat(b, 2, axis=0), 3, axis=1)[::2, ::3]
    elif order == "reversed":
        b = b[::-1, ::-1].copy()[::-1, ::-1]
    batch = np.stack([b, b + b])
    for rows in ROWS:
        a = normal((rows, 130), rows)
        assert_same_bits(regard.matmul(a, b), regard.matmul(a, floats))
        assert_same_bits(regard.matmul(a, b[:, 3]), regard.matmul(a, floats[:, 3]))
        assert_same_bits(regard.matmul(a, batch), regard.matmul(a, batch.astype(np.float32)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_number_of_16_bits(kind, target):
    """The numbers include subnormals, infinities and NaN. The product of a number and 1 is that
    number."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(type_named(kind)).reshape(-1, 1)
    with np.errstate(invalid="ignore"):
        wanted = numbers.astype(np.float32).T
    one = np.ones((1, 1), np.float32)
    for b in (numbers.T, np.asfortranarray(numbers.T)):
        assert np.array_equal(regard.matmul(one, b), wanted, equal_nan=True)
    identity, square = np.eye(256, dtype=np.float32), numbers.reshape(256, 256)
    zeroed = np.where(np.isfinite(square.astype(np.float32)), square, np.zeros_like(square))
    assert_same_bits(regard.matmul(identity, zeroed.T) + 0, zeroed.T.astype(np.float32) + 0)


@pytest.mark.parametrize("scale", [2.0**-102, 2.0**-60 / 3, 0.1, 2.0**119 / 3, 0.0, -0.7])
def test_every_number_of_8_bits(scale, target):
    """Every number is multiplied by its scale with one rounding, even the smallest and the
    largest."""
    numbers = np.tile(np.arange(-128, 128, dtype=np.int8), (3, 1))
    scales = np.full((3, 4), scale, np.float32)
    scales[1] *= np.float32(1.0625)
    weight = regard.QuantizedWeight.from_parts(numbers, scales)
    wanted = numbers * np.repeat(scales, 64, axis=1)
    assert_same_bits(weight.dequantize(), wanted)
    identity = np.eye(256, dtype=np.float32)
    for rows in (slice(0, 256), slice(100, 108), slice(7, 8)):
        product = regard.matmul(identity[rows], weight.T)
        assert_same_bits(product + 0, wanted.T[rows] + 0)


@pytest.mark.parametrize("shape", [(5, 64), (7, 100), (3, 1), (2, 0), (0, 7), (900, 700)], ids=str)
def test_no_weight_is_off_by_more_than_half_a_scale(shape):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape) * np.exp(3 * rng.standard_normal((shape[0], 1)))
    kept = regard.QuantizedWeight(weight)
    assert kept.shape == shape
    assert kept.numbers.dtype == np.int8
    assert kept.scales.shape == (shape[0], -(-shape[1] // 64))
    # The quotient and the float32 dividend have been rounded before.
    allowed = np.repeat(kept.scales, 64, axis=1)[:, : shape[1]] * (0.5 + 2**-15)
    assert (np.abs(as_written(kept) - weight) <= allowed).all()
    assert np.array_equal(kept.dequantize(), as_written(kept))  # exact in float32
    for begin in range(0, shape[1], 64):
        group = np.abs(weight[:, begin : begin + 64].astype(np.float32)).max(1, initial=0)
        assert (kept.scales[:, begin // 64] <= group / 127 * (1 + 2**-15)).all()
        assert (kept.scales[:, begin // 64] >= group / np.float32(127) * (1 - 2**-23)).all()


def test_what_holds_a_weight_is_not_an_array():
    weight = regard.QuantizedWeight(normal((3, 5)))
    for held in (weight, weight.T):
        with pytest.raises(TypeError, match="dequantize"):
            np.asarray(held)


def test_rows_of_a_weight():
    weight = regard.QuantizedWeight(normal((30, 100)))
    floats = weight.dequantize()
    for index in (3, -1, slice(2, 9, 3), np.array([[5, 5], [0, 29]]), [1, 2], np.arange(30) > 20):
        assert_same_bits(weight[index], floats[index])
    assert weight.nbytes == 30 * 100 + 30 * 2 * 4
    for index in ((0, 1), None, Ellipsis):
        with pytest.raises(TypeError, match=says("rows")):
            weight[index]
    with pytest.raises(IndexError):
        weight[30]


def test_copies_have_the_same_bits():
    weight, a = regard.QuantizedWeight(normal((70, 130))), normal((2, 130), 1)
    for made in (
        copy.deepcopy(weight),
        pickle.loads(pickle.dumps(weight)),
        pickle.loads(pickle.dumps(weight.T)).T,
        regard.QuantizedWeight.from_parts(weight.numbers, weight.scales),
    ):
        assert_same_bits(made.dequantize(), weight.dequantize())
        assert_same_bits(regard.matmul(a, made.T), regard.matmul(a, weight.T))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_products_that_are_packed_for_all_threads(kind, target):
    """There are so many rows and columns that each is packed once, for the tasks of all threads."""
    weight = narrow(normal((1300, 1111)), kind)
    a = normal((1100, 1111), 1)
    expected = regard.matmul(a, floats_of(weight).T, threads=1)
    for threads in (1, 2, 3):
        assert_same_bits(regard.matmul(a, weight.T, threads=threads), expected)
