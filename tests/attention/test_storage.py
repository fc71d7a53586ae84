"""float16 and bfloat16 are stored in 16 bits, computed in float32, and rounded once."""

import itertools

import numpy as np
import pytest

import cases
import regard
from element_types import each_in_one_type
from option_cases import MIXES
from reference import arithmetic, assert_matches, assert_same_bits, expected, result_type

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}
TYPES = ("float16", "bfloat16", "float32", "float64")


def normal(dtype, *shapes, seed=0):
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def plain(dtype, *, q_len=19, kv_len=130):
    return normal(dtype, (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12))


def widened(problem):
    """Return the same numbers in float32."""
    mask = problem.options.get("mask")
    options = dict(problem.options)
    if mask is not None and mask.dtype != bool:
        options["mask"] = mask.astype(np.float32)
    return [x.astype(np.float32) for x in problem.arrays], options


@each_in_one_type([*cases.SIZES[1::2], *MIXES], "half")
def test_halves_are_float32_rounded_once(case, half, target):
    """Reading is exact and the arithmetic is float32, so the result has the bits of the same call
    on the same numbers in float32, rounded to nearest."""
    problem = case.build(half)
    arrays, options = widened(problem)
    output, weights, lse = sdpa(*arrays, **options, **EVERYTHING)
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
    nan = np.isnan(value.astype(np.float32))
    assert nan.any()
    assert np.isnan(output[nan].astype(np.float32)).all()
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


# The types of query, key and value, with the types of a mask in rotation.
MIXED = list(zip(itertools.product(TYPES, repeat=3), itertools.cycle([None, *TYPES])))


@pytest.mark.parametrize(("types", "mask_type"), MIXED, ids=str)
def test_mixed_types(types, mask_type, target):
    """The result has NumPy's result type for query, key and value; the mask does not count."""
    pytest.importorskip("ml_dtypes")
    shapes = (2, 9, 16), (1, 101, 16), (1, 101, 5)
    arrays = [a.astype(t) for a, t in zip(normal(np.float64, *shapes), types, strict=True)]
    mask = None
    if mask_type:
        (mask,) = normal(np.float64, (9, 101), seed=1)
        mask = np.where(mask > 0.7, -np.inf, mask).astype(mask_type)
    output, weights, lse = sdpa(*arrays, mask, **EVERYTHING)
    want = expected(*arrays, mask)
    assert want.dtype == result_type(*arrays)
    assert_matches(want, output=output, weights=weights, lse=lse)
    inner = want.arithmetic
    same = [x.astype(inner) for x in arrays]
    wide = sdpa(*same, None if mask is None else mask.astype(inner), **EVERYTHING)
    wanted = wide[0].astype(want.dtype), wide[1].astype(want.dtype), wide[2]
    assert_same_bits((output, weights, lse), wanted)


def test_integers_beside_halves(half, target):
    """Integers and lists are read as float64, and so is everything they are computed with."""
    query, key, value = plain(half)
    whole = np.random.default_rng(0).integers(-3, 4, query.shape)
    wide = [x.astype(np.float64) for x in (query, key, value)]
    assert_same_bits(sdpa(whole, key, value), sdpa(whole.astype(np.float64), *wide[1:]))
    assert_same_bits(sdpa(query, key, value.tolist()), sdpa(*wide[:2], wide[2]))
    mask = np.random.default_rng(1).standard_normal((19, 130)).round(1)
    wanted = sdpa(query, key, value, mask.astype(np.float32))
    assert_same_bits(sdpa(query, key, value, mask.tolist()), wanted)


def test_out_is_filled_and_returned(half, target):
    arrays = plain(half)
    wanted, lse = sdpa(*arrays, return_lse=True)
    out = np.full(wanted.shape, np.nan, half)
    assert sdpa(*arrays, out=out) is out
    assert_same_bits(out, wanted)
    room = np.full((2, 4, 38, 25), 7, half)
    out = room[:, :, ::2, 1::2]
    output, again = sdpa(*arrays, out=out, return_lse=True)
    assert output is out
    assert_same_bits((out, again), (wanted, lse))
    out[...] = 7
    assert (room == 7).all()


def test_out_of_halves_is_cleared_where_nothing_is_seen(half, target):
    query, key, value = plain(half)
    out = np.full((2, 4, 19, 12), np.nan, half)
    sdpa(query, key, value, key_lengths=0, out=out)
    assert_same_bits(out, np.zeros_like(out))


def test_subnormal_values(half, target):
    """Below the normal range, a result is rounded to a multiple of the smallest number."""
    query, key, _ = plain(half)
    steps = np.random.default_rng(0).integers(-700, 700, (2, 2, 130, 12)) / 700
    value = (steps * {"float16": 2.0**-14, "bfloat16": 2.0**-126}[half.name]).astype(half)
    want = expected(query, key, value)
    output = sdpa(query, key, value)
    assert output.any()
    assert_matches(want, output=output)


def test_inputs_of_halves_are_left_alone(half, target):
    arrays = plain(half)
    before = [x.tobytes() for x in arrays]
    for array in arrays:
        array.setflags(write=False)
    sdpa(*arrays, is_causal=True, **EVERYTHING)
    assert [x.tobytes() for x in arrays] == before


def test_bfloat16_is_told_by_its_name_and_not_imported(target, output_of):
    """Only code that uses ml_dtypes imports it."""
    script = """
    import sys
    import numpy as np, regard
    x = np.ones((2, 3, 4), "f2")
    regard.scaled_dot_product_attention(x, x, x)
    assert "ml_dtypes" not in sys.modules
    print(regard.scaled_dot_product_attention(x, x, x).dtype)
    """
    assert output_of(script, REGARD_TARGET=target) == "float16"


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
