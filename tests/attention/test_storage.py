"""float16 and bfloat16 are stored in 16 bits, computed in float32, and rounded once."""

import hypothesis
import numpy as np

import regard
from drawn_problems import TARGETS, examples, on_target, problems
from element_types import TYPES
from reference import arithmetic, assert_same_bits
from test_options import EVERYTHING, plain

sdpa = regard.scaled_dot_product_attention


@hypothesis.given(problem=problems(types=TYPES["half"], mixed=False), target=TARGETS)
@examples(150)
def test_halves_are_float32_rounded_once(problem, target):
    """Reading is exact and the arithmetic is float32, so the result has the bits of the same call
    on the same numbers in float32, rounded to nearest."""
    half = problem.query.dtype
    arrays = [x.astype(np.float32) for x in problem.arrays]
    with on_target(target):
        output, weights, lse = sdpa(*arrays, **problem.options, **EVERYTHING)
        wanted = output.astype(half), weights.astype(half), lse
        assert_same_bits(sdpa(*problem.arrays, **problem.options, **EVERYTHING), wanted)
        output, lse = sdpa(*problem.arrays, **problem.options, return_lse=True)
        assert_same_bits((output, lse), (wanted[0], lse))


def test_every_number_comes_through(half, target):
    """A single key has weight 1, so each of the 65,536 patterns as a value, including subnormals,
    infinities and NaN, comes out unchanged."""
    value = np.arange(2**16, dtype=np.uint16).view(half)[None]
    one = np.ones((1, 8), half)
    output = sdpa(one, one, value)
    with np.errstate(invalid="ignore"):  # which functions warn of signaling NaN depends on the CPU
        nan = np.isnan(value)
    assert nan.any()
    assert np.isnan(output[nan]).all()
    # A zero has no sign in the output.
    assert_same_bits(output[~nan], value[~nan] + half.type(0))


def test_results_are_rounded_to_nearest_even(half, target):
    """Equal weights average neighboring numbers: every mean is halfway, and rounds to the even one.
    If a third and a fourth number move it off the middle, it rounds to the nearer one."""
    # Sums of four must fit float32.
    end = np.array({"float16": np.inf, "bfloat16": 2.0**126}[half.name], half).view(np.uint16)
    patterns = np.arange(int(end), dtype=np.uint16)
    low, high = patterns[:-1].view(half), patterns[1:].view(half)
    query, key = np.zeros((1, 4), half), np.zeros((2, 4), half)
    mean = (low.astype(np.float64) + high.astype(np.float64)) / 2
    output = sdpa(query, key, np.stack([low, high]))
    assert_same_bits(output[0], mean.astype(half))
    four = np.stack([low, low, low, high]), np.stack([low, high, high, high])
    for values, nearer in zip(four, (low, high), strict=True):
        assert_same_bits(sdpa(query, np.zeros((4, 4), half), values)[0], nearer)


def test_numbers_beyond_the_type_stay_within(half, target):
    """float32 handles scores far beyond float16, with 64 additions in any order. The mean of the
    largest numbers is the largest number."""
    top = {"float16": 65504.0, "bfloat16": 2.0**124}[half.name]
    value = np.full((7, 3), top, half)
    query, key = np.full((5, 64), 200, half), np.full((7, 64), 200, half)
    output, lse = sdpa(query, key, value, scale=1.0, return_lse=True)
    assert_same_bits(output, np.full((5, 3), top, half))
    limit = (64 / 2 + 4) * np.finfo(np.float32).eps
    assert np.isclose(lse, 200 * 200 * 64 + np.log(7), limit, 0).all()


def test_lse_and_slopes_are_in_the_precision_of_the_arithmetic(half, target):
    """A sink and slopes that 16 bits cannot hold keep their float32 values."""
    arrays = plain(half)
    fine = np.float32(1 + 2**-20)
    options = {
        "sinks": np.full(4, fine),
        "alibi_slopes": np.full(4, fine),
        "key_lengths": 0,
    }
    lse = sdpa(*arrays, **options, return_lse=True)[1]
    assert lse.dtype == arithmetic(half)
    assert np.isclose(lse, fine, 1.5 * np.finfo(np.float32).eps, 0).all()
