"""Test the meaning of options against equivalent calls: with a mask, with a slice of the keys, and
without the option."""

import numpy as np
import pytest

import regard
from error_limits import assert_matches, expected
from reference import arithmetic, assert_same_bits

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}


def normal(dtype, *shapes, seed=0):
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def plain(dtype, *, q_len=19, kv_len=130):
    return normal(dtype, (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12))


@pytest.mark.parametrize("sides", [(0, 0), (None, 0), (0, None), (5, 2), (2**63 - 1, 2**63 - 1)])
@pytest.mark.parametrize("offset", [2**63 - 1, 2**62, -(2**62), -(2**63)])
def test_windows_at_the_ends_of_the_integers(offset, sides, dtype, target):
    """p - left and p + right may exceed 64 bits; visibility follows exact arithmetic."""
    arrays, (left, right) = plain(dtype, q_len=3, kv_len=40), sides
    ahead = np.arange(40, dtype=object) - (np.arange(3, dtype=object)[:, None] + offset)
    seen = np.ones((3, 40), bool)
    seen &= True if left is None else (ahead >= -left).astype(bool)
    seen &= True if right is None else (ahead <= right).astype(bool)
    actual = sdpa(*arrays, window=sides, query_offset=offset, **EVERYTHING)
    assert_same_bits(actual, sdpa(*arrays, seen, **EVERYTHING))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.intp])
def test_integers_of_any_kind(kind, target):
    arrays = plain(np.float32)
    wanted = sdpa(*arrays, window=(3, 9), key_lengths=100, query_offset=40)
    window = kind(3), kind(9)
    actual = sdpa(*arrays, window=window, key_lengths=kind(100), query_offset=kind(40))
    assert_same_bits(actual, wanted)
    lengths = np.array([100, 7], kind)
    wanted = [sdpa(*(x[i] for x in arrays), key_lengths=(100, 7)[i]) for i in range(2)]
    assert_same_bits(sdpa(*arrays, key_lengths=lengths), np.stack(wanted))
    assert_same_bits(sdpa(*arrays, key_lengths=[100, 7]), np.stack(wanted))


def test_options_that_say_nothing(dtype, target):
    """Options that mean nothing, such as no window or no sink, give the bits of the call without
    them."""
    arrays = plain(dtype)
    wanted = sdpa(*arrays, **EVERYTHING)
    nothing = dict.fromkeys(
        ("window", "key_lengths", "left_padding", "softcap", "alibi_slopes", "sinks")
    )
    for options in (nothing, {"window": (None, None)}, {"key_lengths": 130}):
        assert_same_bits(sdpa(*arrays, **options, **EVERYTHING), wanted)


def test_options_that_change_nothing(storage, target):
    arrays = plain(storage)
    want = expected(*arrays)
    for options in (
        {"sinks": np.full(4, -np.inf, np.float32)},
        {"alibi_slopes": np.zeros(4)},
        {"softcap": 1e30},
        {"softcap": 1e300},  # beyond float32
    ):
        output, weights, lse = sdpa(*arrays, **options, **EVERYTHING)
        assert_matches(want, output=output, weights=weights, lse=lse)


@pytest.mark.parametrize("cap", [1e-40, 1e-300, 5e-324])
def test_a_cap_that_leaves_nothing(cap, storage, target):
    """Any positive number is a cap, even a number that float32 cannot hold."""
    query, key, value = plain(storage)
    want = expected(query, np.zeros_like(key), value)
    output, weights = sdpa(query, key, value, softcap=cap, return_weights=True)
    assert_matches(want, output=output, weights=weights)


def test_a_cap_takes_what_overflows(dtype, target):
    """Scores beyond the range of the type are infinite. Once capped, they equal the cap."""
    top = float(np.finfo(dtype).max)
    key = np.array([[1.0], [-1.0], [0.0], [0.5]], dtype) * dtype.type(np.sqrt(top))
    query, value = key[:1] * 4, np.eye(4, dtype=dtype)
    output, weights, lse = sdpa(query, key, value, softcap=3.0, scale=2.0, **EVERYTHING)
    capped = expected(
        np.ones((1, 1), dtype), np.array([[3.0], [-3], [0], [3]], dtype), value, scale=1.0
    )
    assert_matches(capped, output=output, weights=weights, lse=lse)


def test_slopes_beyond_float32(storage, target):
    """A slope may be any finite number. If it is steep, the nearest key takes all weight."""
    query, key, value = plain(storage, q_len=19, kv_len=130)
    for slope in (1e30, 1e300, float(np.finfo(np.float64).max)):
        options = {"alibi_slopes": np.full(4, slope), "query_offset": 60}
        output, weights = sdpa(query, key, value, **options, return_weights=True)
        nearest = np.eye(19, 130, 60, dtype=storage)
        assert_same_bits(weights, np.broadcast_to(nearest, weights.shape))
        assert_same_bits(output, np.repeat(value[..., 60:79, :], 2, axis=1) + storage.type(0))


def test_a_sink_beside_nothing_but_itself(storage, target):
    query, key, value = plain(storage)
    sinks = np.array([1.5, -np.inf, 1e30, -1e30], arithmetic(storage))
    mask = np.ones((19, 130), bool)
    mask[[0, 7, 18]] = False
    for hidden, options in (
        ([0, 7, 18], {"mask": mask}),
        ([0, 7, 18], {"mask": np.where(mask, 0, -np.inf).astype(storage)}),
        (slice(None), {"key_lengths": 0}),
        (slice(0, 6), {"is_causal": True, "query_offset": -6}),
        (slice(6, None), {"window": (3, 0), "query_offset": 127 + 6}),
    ):
        output, weights, lse = sdpa(query, key, value, **options, sinks=sinks, **EVERYTHING)
        assert not output[..., hidden, :].any()
        assert not weights[..., hidden, :].any()
        rows = lse[..., hidden]
        limit = 1.5 * np.finfo(lse.dtype).eps
        assert np.isclose(rows, np.broadcast_to(sinks[:, None], rows.shape), limit, 0).all()
        assert (lse[:, 1][..., hidden] == -np.inf).all()


NUMBERS = ["float16", "float32", "float64", "longdouble", "int8", "uint64"]
FOREIGN = ["bfloat16", "float8_e4m3fn", "int4"]


@pytest.mark.parametrize("name", NUMBERS + FOREIGN)
def test_numbers_of_any_real_type(name, target):
    """Numbers may be scalars and arrays without axes, of NumPy's types and of the types that
    ml_dtypes adds."""
    kind = getattr(np if name in NUMBERS else pytest.importorskip("ml_dtypes"), name)
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    wanted = sdpa(x, x, x, scale=2.0, softcap=3.0)
    for convert in (kind, lambda number: np.array(number, kind)):
        assert_same_bits(sdpa(x, x, x, scale=convert(2), softcap=convert(3)), wanted)
        assert_same_bits(regard.scale(x, convert(2)), regard.scale(x, 2.0))
    angles = regard.positional.rotary_cache(3, 8, base=3.0)
    for actual, exact in zip(
        regard.positional.rotary_cache(3, 8, base=kind(3)), angles, strict=True
    ):
        assert_same_bits(actual, exact)
