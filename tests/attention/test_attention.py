"""Test the fused call against the oracle: sizes, axes, visibility, extra results, and drawn
problems."""

import contextlib
import zlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import cases
import option_cases
import reference
import regard
from data_kinds import KINDS, SCALES, Drawn
from element_types import each_in_one_type
from reference import assert_matches, assert_same_bits

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


@pytest.mark.parametrize("case", cases.SIZES, ids=lambda case: case.name)
def test_oracle_of_sizes(case, dtype, target):
    """The two types have tiles with different edges."""
    check_case(case, dtype)


@each_in_one_type([*cases.AXES, *option_cases.OPTIONS], "dtype", quick=2, often=2)
def test_oracle(case, dtype, target):
    check_case(case, dtype)


HALVES = [*cases.SIZES[::2], *option_cases.OPTIONS[::4]]


@each_in_one_type(HALVES, "half")
def test_oracle_of_halves(case, half, target):
    check(*cases.solved(case, half), threads=2)


TYPES = ["float32", "float64", "float16"]
with contextlib.suppress(ImportError):
    import ml_dtypes

    TYPES.append(ml_dtypes.bfloat16)


@st.composite
def problems(draw):
    """Draw anything small that the contract allows, with any layout; one seed determines the
    numbers."""
    number = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(number)
    batch = draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    q_len, kv_len = draw(st.integers(0, 20)), draw(st.integers(0, 40))
    head_dim, value_dim = draw(st.integers(1, 33)), draw(st.integers(1, 33))
    types = [np.dtype(draw(st.sampled_from(TYPES)))] * 4
    if draw(st.booleans()):
        types = [np.dtype(draw(st.sampled_from(TYPES))) for _ in range(4)]
    inner = reference.arithmetic(reference.result_type(*(np.empty(0, t) for t in types[:3])))

    def cut(axes):
        """Return a shape that broadcasts to `axes`: some axes are 1, some leading axes are
        missing."""
        axes = tuple(draw(st.sampled_from([1, n])) for n in axes)
        return axes[draw(st.integers(0, len(axes))) :]

    def lay(array):
        names = ["as it is", *cases.LAYOUTS] if array.ndim > 1 else ["as it is"]
        return cases.LAYOUTS.get(draw(st.sampled_from(names)), np.array)(array)

    heads = kv_heads * group
    shapes = (heads, q_len, head_dim), (kv_heads, kv_len, head_dim), (kv_heads, kv_len, value_dim)
    shapes = [cut(batch) + shape for shape in shapes]
    drawn = Drawn(draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(list(SCALES))))
    arrays = drawn.arrays(random, *shapes)
    arrays = [lay(x.astype(dtype)) for x, dtype in zip(arrays, types, strict=False)]
    batch = np.broadcast_shapes(*(shape[:-3] for shape in shapes))
    options = drawn.options
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        shape = cut((*batch, heads, q_len, kv_len))
        mask = np.asarray(random.random(shape) < draw(st.sampled_from([0.1, 0.7, 1.0])))
        if kind == "float":
            mask = np.where(mask, drawn.array(random, shape), -np.inf).astype(types[3])
        options["mask"] = lay(mask)
    options["is_causal"] = draw(st.booleans())
    if draw(st.booleans()):
        spread = max(q_len, kv_len) + 2
        options["query_offset"] = random.integers(-spread, spread, cut(batch))
    if draw(st.booleans()):
        side = st.none() | st.integers(0, kv_len + 2)
        options["window"] = draw(st.tuples(side, side))
    if draw(st.booleans()):
        options["key_lengths"] = random.integers(0, kv_len + 1, cut(batch))
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(-2, 2, width=32, allow_subnormal=False))
    if draw(st.booleans()):
        options["softcap"] = draw(st.floats(2**-6, 64, width=32))
    if draw(st.booleans()):
        options["alibi_slopes"] = random.standard_normal(heads).astype(inner)
    if draw(st.booleans()):
        absent = random.random(heads) < 0.2
        options["sinks"] = np.where(absent, -np.inf, random.standard_normal(heads)).astype(inner)
    return cases.Problem(*arrays, options)


@hypothesis.given(problem=problems(), threads=st.integers(1, 3))
@hypothesis.settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
def test_oracle_on_drawn_problems(target, problem, threads):
    check(problem, reference.expected(*problem.arrays, **problem.options), threads)


def plain(dtype, *, seed=0, q_len=19, kv_len=30):
    random = np.random.default_rng(seed)
    shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def test_extra_results_come_in_one_order(dtype, target):
    arrays = plain(dtype)
    want = reference.expected(*arrays)
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
    assert_matches(reference.expected(*arrays), output=out)


def test_out_is_cleared_where_nothing_is_seen(dtype, target):
    query, key, value = plain(dtype)
    mask = np.ones((19, 30), bool)
    mask[[0, 7, 18]] = False
    out = np.full((2, 4, 19, 12), np.nan, dtype)
    sdpa(query, key, value, mask, out=out)
    assert_matches(reference.expected(query, key, value, mask), output=out)
    out = np.full((2, 4, 19, 12), np.nan, dtype)
    sdpa(query, key[..., :0, :], value[..., :0, :], out=out)
    assert_same_bits(out, np.zeros_like(out))


def test_three_ways_to_say_causal(dtype, target):
    query, key, value = plain(dtype, q_len=30)
    triangle = np.tri(30, dtype=bool)
    want = reference.expected(query, key, value, is_causal=True)
    for options in (
        {"is_causal": True},
        {"mask": triangle},
        {"mask": np.where(triangle, 0, -np.inf).astype(dtype)},
        {"mask": triangle, "is_causal": True},
        {"mask": np.zeros((30, 30), dtype), "is_causal": True},
    ):
        output, weights, lse = sdpa(
            query, key, value, **options, return_weights=True, return_lse=True
        )
        assert_matches(want, output=output, weights=weights, lse=lse)


def test_masks_only_remove(dtype, target):
    """A key is visible iff mask and causality both allow it, regardless of which is applied
    first."""
    query, key, value = plain(dtype, q_len=30)
    mask = np.random.default_rng(5).random((30, 30)) < 0.5
    want = reference.expected(query, key, value, mask & np.tri(30, k=4, dtype=bool))
    output, weights = sdpa(
        query, key, value, mask, is_causal=True, query_offset=4, return_weights=True
    )
    assert_matches(want, output=output, weights=weights)


def test_offset_without_causality_changes_nothing(dtype, target):
    arrays = plain(dtype)
    assert_same_bits(sdpa(*arrays, query_offset=-50), sdpa(*arrays))
    assert_same_bits(sdpa(*arrays, query_offset=np.array([3, -4])), sdpa(*arrays))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.intp])
def test_offset_of_any_integer_kind(kind, target):
    arrays = plain(np.float32)
    offset = np.array([3, 20], kind)
    output = sdpa(*arrays, is_causal=True, query_offset=offset)
    assert_matches(reference.expected(*arrays, is_causal=True, query_offset=[3, 20]), output=output)
    output = sdpa(*arrays, is_causal=True, query_offset=kind(3))
    assert_matches(reference.expected(*arrays, is_causal=True, query_offset=3), output=output)


@pytest.mark.parametrize(
    ("offset", "visible"), [(2**63 - 1, True), (2**62, True), (-(2**63), False), (-(2**62), False)]
)
def test_offsets_at_the_ends_of_the_integers(offset, visible, dtype, target):
    arrays = plain(dtype)
    output, lse = sdpa(*arrays, is_causal=True, query_offset=offset, return_lse=True)
    want = reference.expected(*arrays, np.full((1, 1), visible))
    assert_matches(want, output=output, lse=lse)


@pytest.mark.parametrize("scale", [2, np.float32(0.5), np.float64(0.5), np.int64(2)])
def test_scale_of_any_real_kind(scale, dtype, target):
    arrays = plain(dtype)
    assert_matches(
        reference.expected(*arrays, scale=float(scale)), output=sdpa(*arrays, scale=scale)
    )


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
        assert_matches(reference.expected(*arrays, mask.astype(dtype)), output=output)


def test_integers_bools_and_lists_become_float64(target):
    random = np.random.default_rng(3)
    arrays = [random.integers(-3, 4, shape) for shape in ((5, 4), (6, 4), (6, 3))]
    want = reference.expected(*(x.astype(np.float64) for x in arrays))
    assert_matches(want, output=sdpa(*arrays))
    assert_matches(want, output=sdpa(*(x.astype(np.int8) for x in arrays)))
    assert_matches(want, output=sdpa(*(x.tolist() for x in arrays)))
    assert_matches(want, output=sdpa(arrays[0].astype(np.float32), *arrays[1:]))
    arrays = [x > 0 for x in arrays]
    want = reference.expected(*(x.astype(np.float64) for x in arrays))
    assert_matches(want, output=sdpa(*arrays))


def test_mask_may_be_a_list(target):
    arrays = [x[0, 0] for x in plain(np.float32, q_len=3, kv_len=4)]
    mask = [[True, False, True, True], [False] * 4, [True] * 4]
    assert_matches(reference.expected(*arrays, np.array(mask)), output=sdpa(*arrays, mask))
    bias = np.where(mask, 0.5, -np.inf)
    assert_matches(
        reference.expected(*arrays, bias.astype(np.float32)), output=sdpa(*arrays, bias.tolist())
    )


def test_one_array_in_three_roles(dtype, target):
    x = np.random.default_rng(2).standard_normal((3, 40, 16)).astype(dtype)
    assert_matches(reference.expected(x, x, x), output=sdpa(x, x, x))


def test_as_many_axes_as_numpy_has(target):
    x = np.random.default_rng(2).standard_normal((2, 5, 4))
    mask = np.random.default_rng(3).random((2, 5, 5)) < 0.7
    wanted = sdpa(x, x, x, mask)
    for rank in (7, 32, 33, 64):
        deep, deep_mask = (a.reshape((1,) * (rank - 3) + a.shape) for a in (x, mask))
        assert_same_bits(sdpa(deep, deep, deep, deep_mask).reshape(x.shape), wanted)
