"""Attention to keys that come in chunks is right, and has the bits of the order that attend_stream
documents, whatever the chunks are made of."""

import functools
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import error_limits
import reference
import regard
from drawn_problems import TARGETS, examples, on_target, problems
from problem import Problem
from reference import assert_same_bits
from streams import CHUNKS, KEY, QUERY, VALUE, WHOLE, normal, stream

attend = regard.scaled_dot_product_attention
INF = np.inf
LENGTHS = st.sampled_from([1, 2, 7, 20, 96, 311, 1000])


def cut(key, value, length):
    return regard.KeyValueChunks(key, value, length=length)


# In float64 a merge rounds as much as a chunk does, so scores are small: Gaussian.
MEASURED = st.one_of(
    problems(types=["float32", "float16"], mixed=False, dropout=False),
    problems(dropout=False, gaussian=True),
)


@hypothesis.given(problem=MEASURED, length=LENGTHS, target=TARGETS)
@examples(200)
def test_any_cut_gives_what_a_single_call_may(problem, length, target):
    options = dict(problem.options)
    expected = error_limits.expected(*problem.arrays, **options)
    mask = options.pop("mask", None)
    with on_target(target):
        output, lse = stream(
            problem.query, cut(*problem.arrays[1:], length), mask, return_lse=True, **options
        )
    error_limits.assert_matches(expected, output=output, lse=lse)


def merge(first, second):
    return regard.merge_attention_states([first[0], second[0]], [first[1], second[1]])


def documented(problem, length):
    """Compute what the notes of attend_stream promise, state by state."""
    query, dtype = problem.query, reference.result_type(*problem.arrays)
    if query.dtype.itemsize == 2:
        query = query.astype(np.float32)
    states, kv_len = [], problem.key.shape[-2]
    for start in range(0, kv_len, length):
        chunk = problem.keys(start, min(start + length, kv_len))
        chunk.options.pop("sinks", None)
        how = chunk.options | {"return_lse": True, "_wide_lse": True}
        state = attend(query, chunk.key, chunk.value, **how)
        states.append(tuple(each.astype(float) for each in state))
    while len(states) > 1:
        states = [functools.reduce(merge, states[i : i + 16]) for i in range(0, len(states), 16)]
    (state,) = states
    if "sinks" in problem.options:
        sinks = problem.options["sinks"].astype(float)[:, None]
        state = merge(state, (np.zeros_like(state[0]), np.broadcast_to(sinks, state[1].shape)))
    with np.errstate(all="ignore"):
        return state[0].astype(dtype), state[1].astype(reference.arithmetic(dtype))


def streamed(problem, length, **extra):
    chunks = cut(problem.key, problem.value, length)
    return stream(problem.query, chunks, **problem.options, return_lse=True, **extra)


@hypothesis.given(problem=problems(ends=False), length=LENGTHS, target=TARGETS)
@examples(200)
def test_the_bits_are_those_of_the_documented_order(problem, length, target):
    """This includes the weights that dropout drops, and chunks that no query sees."""
    with on_target(target):
        wanted = documented(problem, length)
        for threads in (1, 3):
            assert_same_bits(streamed(problem, length, threads=threads), wanted)


@pytest.mark.parametrize("count", [1, 16, 17, 255, 256, 273])
def test_groups_of_groups(count):
    """The last groups may be incomplete in every possible way."""
    arrays = normal(1, 3, 4), normal(1, count, 4, seed=1), normal(1, count, 2, seed=2)
    problem = Problem(*arrays, {})
    assert_same_bits(streamed(problem, 1), documented(problem, 1))


def relative(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    """Add a term that depends on every argument."""
    for k in range(keys):
        for q in range(queries):
            distance = positions[q] - (first_key + k)
            scores[k * stride + q] += 0.01 * distance + 0.1 * head - 0.2 * (entry % 3)


def test_a_score_function_gets_the_positions_of_a_single_call():
    """This holds wherever the cuts are, and in a part of a larger call too. Scores have the type of
    the keys here, which is wider than the query's."""
    function = regard.ScoreFunction(regard.ScoreFunction.c_type("float64")(relative))
    query = normal(2, 2, 3, 8, dtype="float32")
    key, value = normal(2, 1, 23, 8, seed=1), normal(2, 1, 23, 5, seed=2)
    options = {"score_function": function, "query_offset": [9, 20], "is_causal": True}
    for origin in ((0, 0, 0), (1, 2, 40)):
        whole = attend(query, key, value, dropout_origin=origin, **options)
        for length in (1, 5, 23):
            parts = stream(query, cut(key, value, length), dropout_origin=origin, **options)
            np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-14)


FAR = {"window": (2**63 - 1, 2**63 - 1)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout_origin": (3, 2, 5)},
        {"dropout_origin": (1, 0, 2**63 - 3)},
        *(FAR | {"query_offset": each} for each in (-(2**62), 2**61 + 2**60, 2**63 - 300)),
    ],
    ids=str,
)
def test_dropout_drops_what_a_single_call_drops(options, dtype):
    """Positions within 64 bits are exact, since dropout counts from them."""
    query, key = normal(2, 4, 9, 8, dtype=dtype), normal(2, 2, 103, 8, seed=1, dtype=dtype)
    value = np.broadcast_to(np.eye(103, dtype=dtype), (2, 2, 103, 103))
    options = {"dropout_p": 0.5, "dropout_seed": 11, "query_offset": 20} | options
    whole = attend(query, key, value, **options)
    for length in (1, 5, 50):
        parts = stream(query, cut(key, value, length), **options)
        assert np.array_equal(parts == 0, whole == 0)


@pytest.mark.parametrize(
    "chunks",
    [
        ((key.tolist(), value.tolist()) for key, value in CHUNKS),
        ((key.astype(">f8"), np.asfortranarray(value)) for key, value in CHUNKS),
        [(key, value, None) for key, value in CHUNKS],
    ],
)
def test_any_iterable(chunks):
    assert_same_bits(stream(QUERY, chunks, return_lse=True), WHOLE)


def test_chunks_without_keys_change_no_bit():
    nothing = (KEY[:, :0], VALUE[:, :0])
    some = CHUNKS[:9]  # with the others one group, since numbers count all chunks
    chunks = [nothing, *some[:1], nothing, *some[1:], nothing]
    assert_same_bits(stream(QUERY, chunks), stream(QUERY, some))
    for empty in ([nothing, nothing], regard.KeyValueChunks(*nothing)):
        output, lse = stream(QUERY, empty, return_lse=True, sinks=[1.5, -INF])
        assert_same_bits(output, np.zeros((2, 3, 4)))
        assert_same_bits(lse, np.repeat([[1.5], [-INF]], 3, axis=1))


@pytest.mark.parametrize("layout", ["strided", "between keys"])
def test_out(layout):
    key, out = KEY, np.full((4, 3, 4), np.nan).transpose(2, 1, 0)[::2]
    if layout == "between keys":  # interleaved with an input, but not over it
        memory = np.zeros((2, 200, 16))
        memory[..., :8] = KEY
        key, out = memory[..., :8], memory[:, :3, 8:12]
    wanted = stream(QUERY, [(key, VALUE)])
    assert stream(QUERY, [(key, VALUE)], out=out) is out
    assert_same_bits(out.copy(), wanted)


def test_overflow_to_a_narrower_type_is_silent():
    """Two chunks of the largest float16 give the largest float16."""
    value, key = np.full((1, 4, 2), 65504, np.float16), np.zeros((1, 4, 2), np.float16)
    with warnings.catch_warnings(action="error"):
        assert (stream(key, cut(key, value, 2)) == 65504).all()
        assert np.isinf(stream(key, cut(key, value, 2), dropout_p=0.9, dropout_seed=1)).any()


def test_rows_of_special_numbers_merge_as_states_do():
    """Scores are -inf in one chunk and +inf in another: a state has no output there, or outweighs
    all others."""
    key, value = np.zeros((1, 6, 1)), np.arange(6.0).reshape(1, 6, 1)
    key[0, 1], key[0, 4] = -INF, INF
    problem = Problem(np.array([[[1.0], [-1.0], [np.nan]]]), key, value, {})
    with np.errstate(all="raise"):
        assert_same_bits(streamed(problem, 1)[0], documented(problem, 1)[0])
