"""Test precision="int8": the integers of a NumPy model, on every target that multiplies them. Other
targets use float32."""

import itertools

import hypothesis
import numpy as np
import pytest

import regard
import regard._core
from drawn_problems import examples, problems
from element_types import TYPES
from error_limits import assert_matches
from fewer_bits import group_of, rotated
from int8_model import expected_of_integers, mean_of, rounded
from reference import assert_same_bits, attention

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}
INT8 = {"precision": "int8"}


@pytest.fixture
def without_instruction(target):
    """Run as on a CPU that has only its target's features."""
    regard._core.testing.forbid_int8(True)
    yield
    regard._core.testing.forbid_int8(False)


def normal(*shapes, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def inputs(*, batch=(3,), heads=4, kv_heads=2, q_len=67, kv_len=230, dim=33, seed=0):
    """Return arrays whose keys have a mean, like the keys of models."""
    shapes = (
        (heads, q_len, dim),
        (kv_heads, kv_len, dim),
        (kv_heads, kv_len, 20),
        (kv_heads, 1, dim),
    )
    query, key, value, mean = normal(*((*batch, *shape) for shape in shapes), seed=seed)
    return query, key + 3 * mean, value


# The integers


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 15, 16, 17, 64, 127, 128, 1024])
def test_integers(dim, int8_target):
    """The lse of a query that sees one key is that key's score, which contains the integer."""
    query, key, value = normal((60, dim), (60, dim), (60, 3), seed=dim)
    key -= mean_of(key)
    mean = mean_of(key)
    _, lse = sdpa(query, key, value, window=(0, 0), scale=1.0, return_lse=True, **INT8)
    q, k = rounded(rotated(query)), rounded(rotated(key - mean))
    step = q.step[:, 0].astype(np.float64) * k.step[:, 0] * group_of(dim)
    sums = (lse - query.astype(np.float64) @ mean) / step
    assert np.array_equal(np.rint(sums), (q.integers * k.integers).sum(1))


@pytest.mark.parametrize("dim", [4, 64, 1024])
def test_the_largest_sums(dim, int8_target):
    """All integers are 127 steps: 127 * 127 * 1024 is just below 2^24."""
    query = np.zeros((2, dim), np.float32)  # rotation spreads one dimension over all
    query[:, 0] = 1, -1
    key = 2 * query
    value = np.eye(2, dtype=np.float32)
    options = {"window": (0, 0), "scale": 1.0, "return_lse": True}
    _, lse = sdpa(query, key, value, **options, **INT8)
    np.testing.assert_allclose(lse, 2, rtol=1e-6)


@hypothesis.given(problem=problems(types=TYPES["single_or_half"], dropout=False, ends=False))
@examples(200)
def test_every_option_on_the_integers_scores(int8_target, problem):
    want = expected_of_integers(*problem.arrays, **problem.options)
    output, weights, lse = sdpa(*problem.arrays, **problem.options, **EVERYTHING, **INT8)
    assert_matches(want, output=output, weights=weights, lse=lse)
    assert_same_bits(sdpa(*problem.arrays, **problem.options, **INT8), output)


# Bit equality


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"key_lengths": np.array([229, 96])}, [slice(229), slice(96)]),
        # Whole blocks: the slice has the same bits.
        ({"left_padding": np.array([96, 192])}, [slice(96, None), slice(192, None)]),
    ],
    ids=["lengths", "padding"],
)
def test_keys_beyond_lengths_and_padding_do_not_exist(options, parts, int8_target):
    """The keys' mean does not include them either."""
    query, key, value = inputs(batch=(2,))
    wanted = sdpa(query, key, value, **options, **INT8)
    alone = [sdpa(query[i], key[i, :, n], value[i, :, n], **INT8) for i, n in enumerate(parts)]
    assert_same_bits(wanted, np.stack(alone))
    for other in (np.nan, np.inf, 1e30, 0):
        hidden = [np.full_like(x, other) for x in (key, value)]
        for entry, part in enumerate(parts):
            for loud, array in zip(hidden, (key, value), strict=True):
                loud[entry, :, part] = array[entry, :, part]
        assert_same_bits(sdpa(query, *hidden, **options, **INT8), wanted)


def test_more_keys_than_come_to_int8_at_a_time(int8_target):
    """The heads' keys overlap in memory. Each head has its own mean and its own 7.2 MB of integers,
    of which the call forms 8 MiB per thread at a time."""
    base, value, query = normal((100_007, 64), (100_000, 3), (8, 1, 64))
    key = np.lib.stride_tricks.sliding_window_view(base, 100_000, axis=0).swapaxes(1, 2)
    assert key.shape == (8, 100_000, 64)
    value = np.broadcast_to(value, (8, *value.shape))
    explained = regard.explain(query, key, value, threads=4, **INT8)
    assert 4 * 7.2e6 < explained.workspace_bytes < 32 << 20
    together = sdpa(query, key, value, threads=4, **INT8)
    for head in range(8):
        assert_same_bits(together[head], sdpa(query[head], key[head], value[head], **INT8))


def test_a_packed_sequence_is_one_alone(int8_target):
    query, key, value = (x.swapaxes(0, 1) for x in inputs(batch=(), q_len=230))
    starts = np.array([0, 97, 97, 100, 230])
    packed = regard.scaled_dot_product_attention_ragged(
        query, key, value, starts, starts, is_causal=True, **INT8
    )
    for begin, end in itertools.pairwise(starts):
        part = (x[begin:end].swapaxes(0, 1) for x in (query, key, value))
        alone = sdpa(*part, is_causal=True, **INT8)
        assert_same_bits(packed[begin:end], alone.swapaxes(0, 1))


# NaN, inf, and numbers near the ends of float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_query_spoils_its_row_alone(bad, int8_target):
    query, key, value = inputs(batch=())
    wanted = sdpa(query, key, value, return_lse=True, **INT8)
    query[1, 5, 3] = bad
    output, lse = sdpa(query, key, value, return_lse=True, **INT8)
    assert np.isnan(output[1, 5]).all()
    output[1, 5], lse[1, 5] = wanted[0][1, 5], wanted[1][1, 5]
    assert_same_bits((output, lse), wanted)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_key_shows_in_the_rows_that_see_it(bad, int8_target):
    query, key, value = inputs(batch=(), heads=2, kv_heads=2)
    key[1, 40, 7] = bad
    output, weights, lse = sdpa(query, key, value, is_causal=True, **EVERYTHING, **INT8)
    assert np.isnan(output[1, 40:]).all()
    assert np.isnan(lse[1, 40:]).all()
    assert np.isfinite(output[0]).all()
    assert np.isfinite(output[1, :40]).all()
    assert not weights[1, :40, 40:].any()
    without = np.where(np.isfinite(key), key, 0)  # counts as 0 in the mean
    assert_same_bits(output[:, :40], sdpa(query, without, value, is_causal=True, **INT8)[:, :40])


@pytest.mark.parametrize("power", [-124, -119, -60, 60, 99, 120])
def test_numbers_near_the_ends_of_float32(power, int8_target):
    """Large keys and small queries, or the reverse, have the same scores as ordinary ones."""
    query, key, value = inputs(batch=(), heads=2, kv_heads=2)
    key = np.clip(key, -1.9, 1.9)
    wanted = sdpa(query, key, value, **INT8)
    big, small = np.float32(2.0**power), 2.0**-power
    with np.errstate(under="ignore"):
        output = sdpa(query, key * big, value, scale=small / np.sqrt(33), **INT8)
    assert np.isfinite(output).all()
    if abs(power) < 100:
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-6)


def test_keys_without_differences_and_zeros(int8_target):
    query, key, value = inputs(batch=())
    for keys in (np.broadcast_to(key[:, :1], key.shape), np.zeros_like(key)):
        want = attention(query, keys, value)
        output, lse = sdpa(query, keys, value, return_lse=True, **INT8)
        np.testing.assert_allclose(output, want.output, atol=1e-6)
        np.testing.assert_allclose(lse, want.lse, rtol=1e-5)
    zeros = np.zeros_like(query)
    np.testing.assert_allclose(
        sdpa(zeros, key, value, **INT8),
        np.broadcast_to(value.mean(1, keepdims=True), (2, 67, 20)).repeat(2, 0),
        atol=1e-6,
    )


# Sizes and errors


@pytest.mark.parametrize("shape", [(0, 8), (5, 8)])
def test_nothing_to_do(shape, target):
    query, key, value = normal(shape, (0, 8), (0, 3))
    output, lse = sdpa(query, key, value, return_lse=True, **INT8)
    assert output.shape == (shape[0], 3)
    assert not output.any()
    assert (lse == -np.inf).all()
    assert sdpa(np.zeros((0, 2, 3, 8), np.float32), *normal((2, 4, 8), (2, 4, 3)), **INT8).size == 0


def test_explain_names_the_instruction(int8_target):
    arrays = inputs(q_len=300, kv_len=1000)
    plan = regard.explain(*arrays, is_causal=True, **INT8)
    plain = regard.explain(*arrays, is_causal=True)
    assert (plan.kernel, plain.kernel, plain.instruction) == ("int8", "forward", None)
    # The target for tests has no such instruction and uses plain arithmetic.
    instruction = {"x86_v4": "avx512_vnni", "x86_v3": "avx_vnni", "wide": "avx2"}[int8_target]
    assert plan.instruction == instruction
    assert f"8-bit integers multiplied by {instruction}\n" in str(plan)
    assert plan.scores_computed == plain.scores_computed
    integers = 3 * 2 * 1000 * (36 + 4 + 4)
    assert integers < plan.workspace_bytes - plain.workspace_bytes < 1.2 * integers + 65536
    few = regard.explain(*inputs(q_len=1), **INT8)
    assert few.kernel == "int8"


# Targets on which no instruction makes it faster


@hypothesis.given(problem=problems(types=TYPES["single_or_half"]))
@examples(50)
def test_float32_on_other_cpus(target, without_instruction, problem):
    wanted = sdpa(*problem.arrays, **problem.options, **EVERYTHING)
    assert_same_bits(sdpa(*problem.arrays, **problem.options, **EVERYTHING, **INT8), wanted)
    assert_same_bits(sdpa(*problem.arrays, **problem.options, **INT8), wanted[0])


@pytest.mark.parametrize("q_len", [1, 300])
def test_explain_says_that_nothing_is_rounded(q_len, target, without_instruction):
    arrays = inputs(q_len=q_len, kv_len=1000)
    plan, plain = regard.explain(*arrays, **INT8), regard.explain(*arrays)
    assert plan.kernel == plain.kernel == ("decode" if q_len == 1 else "forward")
    assert plan.instruction is None
    note, *others = plan.notes
    assert note.startswith(f"precision 'int8' has no effect: {target} on this CPU")
    assert tuple(others) == plain.notes
