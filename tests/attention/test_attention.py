"""Test the fused call against the oracle: sizes, axes, visibility, extra results, and drawn
problems."""

import zlib

import hypothesis
import numpy as np
from hypothesis import strategies as st

import cases
import error_limits
import regard
from drawn_problems import TARGETS, examples, on_target, problems
from element_types import each_in_one_type
from error_limits import assert_matches
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention


def check(problem, want, threads):
    options = problem.options | {"threads": threads}
    output, weights, lse = sdpa(*problem.arrays, **options, return_weights=True, return_lse=True)
    assert_matches(want, output=output, weights=weights, lse=lse)
    # Without weights the kernel cannot keep a row of scores and takes another code path.
    output, lse = sdpa(*problem.arrays, **options, return_lse=True)
    assert_matches(want, output=output, lse=lse)


def check_case(case, dtype):
    problem, want = cases.solved(case, dtype)
    check(problem, want, threads=(None, 1, 2, 3)[zlib.crc32(case.name.encode()) % 4])


@each_in_one_type(cases.SIZES, "dtype")
def test_oracle_of_sizes(case, dtype, target):
    check_case(case, dtype)


@each_in_one_type(cases.AXES, "dtype", quick=2)
def test_oracle_of_axes(case, dtype, target):
    check_case(case, dtype)


@hypothesis.given(problem=problems(dropout=False), target=TARGETS, threads=st.integers(1, 3))
@examples(400)
def test_oracle_of_drawn_problems(problem, target, threads):
    with on_target(target):
        check(problem, error_limits.expected(*problem.arrays, **problem.options), threads)


def plain(dtype, *, seed=0, q_len=19, kv_len=30):
    random = np.random.default_rng(seed)
    shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def test_extra_results_come_in_one_order(dtype, target):
    arrays = plain(dtype)
    want = error_limits.expected(*arrays)
    output = sdpa(*arrays)
    assert_matches(want, output=output)
    with_weights = sdpa(*arrays, return_weights=True)
    with_lse = sdpa(*arrays, return_lse=True)
    with_both = sdpa(*arrays, return_weights=True, return_lse=True)
    assert [type(r) for r in (with_weights, with_lse, with_both)] == [tuple] * 3
    assert [len(r) for r in (with_weights, with_lse, with_both)] == [2, 2, 3]
    assert_matches(want, output=with_weights[0], weights=with_weights[1])
    assert_matches(want, output=with_lse[0], lse=with_lse[1])
    assert_matches(want, output=with_both[0], weights=with_both[1], lse=with_both[2])


def test_out_is_filled_and_returned(dtype, target):
    arrays = plain(dtype)
    wanted = sdpa(*arrays)
    out = np.full_like(wanted, np.nan)
    assert sdpa(*arrays, out=out) is out
    assert_same_bits(out, wanted)
    out[...] = np.nan
    output, _weights, _lse = sdpa(*arrays, out=out, return_weights=True, return_lse=True)
    assert output is out
    assert_matches(error_limits.expected(*arrays), output=out)


def test_out_is_cleared_where_nothing_is_seen(dtype, target):
    query, key, value = plain(dtype)
    mask = np.ones((19, 30), bool)
    mask[[0, 7, 18]] = False
    out = np.full((2, 4, 19, 12), np.nan, dtype)
    sdpa(query, key, value, mask, out=out)
    assert_matches(error_limits.expected(query, key, value, mask), output=out)
    out = np.full((2, 4, 19, 12), np.nan, dtype)
    sdpa(query, key[..., :0, :], value[..., :0, :], out=out)
    assert_same_bits(out, np.zeros_like(out))


def test_mixed_precision_is_the_wider_one(target):
    query, key, value = plain(np.float32)
    wide = [x.astype(np.float64) for x in (query, key, value)]
    want = sdpa(*wide)
    for mixed in [(wide[0], key, value), (query, wide[1], value), (query, key, wide[2])]:
        assert_same_bits(sdpa(*mixed), want)


def test_mask_does_not_set_the_precision(target):
    mask = np.where(np.random.default_rng(1).random((19, 30)) < 0.5, -np.inf, 0.25)
    for dtype, other in [(np.float32, np.float64), (np.float64, np.float32)]:
        arrays = plain(dtype)
        output = sdpa(*arrays, mask.astype(other))
        assert_matches(error_limits.expected(*arrays, mask.astype(dtype)), output=output)


def test_integers_bools_and_lists_become_float64(target):
    random = np.random.default_rng(3)
    arrays = [random.integers(-3, 4, shape) for shape in ((5, 4), (6, 4), (6, 3))]
    want = error_limits.expected(*(x.astype(np.float64) for x in arrays))
    assert_matches(want, output=sdpa(*arrays))
    assert_matches(want, output=sdpa(*(x.astype(np.int8) for x in arrays)))
    assert_matches(want, output=sdpa(*(x.tolist() for x in arrays)))
    assert_matches(want, output=sdpa(arrays[0].astype(np.float32), *arrays[1:]))
    mask = random.random((5, 6)) < 0.7
    for each in (mask, np.where(mask, 0.5, -np.inf)):
        assert_same_bits(sdpa(*arrays, each.tolist()), sdpa(*arrays, each))
    arrays = [x > 0 for x in arrays]
    want = error_limits.expected(*(x.astype(np.float64) for x in arrays))
    assert_matches(want, output=sdpa(*arrays))


def test_as_many_axes_as_numpy_has(target):
    x = np.random.default_rng(2).standard_normal((2, 5, 4))
    mask = np.random.default_rng(3).random((2, 5, 5)) < 0.7
    wanted = sdpa(x, x, x, mask)
    for rank in (7, 32, 33, 64):
        deep, deep_mask = (a.reshape((1,) * (rank - 3) + a.shape) for a in (x, mask))
        assert_same_bits(sdpa(deep, deep, deep, deep_mask).reshape(x.shape), wanted)
