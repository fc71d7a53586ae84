"""Attention to keys that come in chunks is right, and has the same bits however the chunks are
cut."""

import dataclasses
import functools
import warnings
from itertools import product

import numpy as np
import pytest

import reference
import regard
from cases import AXES, SIZES, solved
from element_types import each_in_one_type, type_named
from option_cases import OPTIONS
from reference import assert_same_bits

attend, stream = regard.scaled_dot_product_attention, regard.attend_stream
INF = np.inf


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(type_named(dtype))


def cuts_of(kv_len):
    """Return lengths of chunks: one key each if there are few, and several lengths near the
    kernels' own."""
    lengths = {1 if kv_len <= 300 else kv_len // 200, 7, 96, max(1, kv_len // 3), kv_len + 1}
    return sorted(length for length in lengths if kv_len <= 400 * length)


def pieces(array, length):
    return [array[..., i : i + length, :] for i in range(0, max(array.shape[-2], 1), length)]


@each_in_one_type([*AXES, *SIZES, *OPTIONS][::5], "storage", quick=4, often=2)
def test_any_cut_gives_what_a_single_call_may(case, storage, target):
    problem, expected = solved(case, storage)
    options = dict(problem.options)
    mask = options.pop("mask", None)
    for length in cuts_of(problem.key.shape[-2]):
        chunks = regard.KeyValueChunks(problem.key, problem.value, length=length)
        output, lse = stream(problem.query, chunks, mask, return_lse=True, **options)
        reference.assert_matches(expected, output=output, lse=lse)


@dataclasses.dataclass
class Ordered:
    name: str
    options: dict
    length: int


def merge(first, second):
    return regard.merge_attention_states([first[0], second[0]], [first[1], second[1]])


def documented(query, key, value, mask=None, *, length, sinks=None, **options):
    """Compute what the notes of attend_stream promise, state by state."""
    dtype = reference.result_type(query, key, value)
    if query.dtype.itemsize == 2:
        query = query.astype(np.float32)
    states, start = [], 0
    offset, kv_len = options.pop("query_offset", 0), key.shape[-2]
    for k, v in zip(pieces(key, length), pieces(value, length), strict=True):
        stop = start + k.shape[-2]
        each = dict(options)
        for name in each.keys() & {"key_lengths", "left_padding"}:
            each[name] = np.clip(np.asarray(each[name]) - start, 0, stop - start)
        if each.get("dropout_p"):
            each["dropout_origin"] = (0, 0, start)
        m = mask
        if isinstance(mask, np.ndarray) and mask.ndim and mask.shape[-1] == kv_len:
            m = mask[..., start:stop]
        output, lse = attend(
            query,
            k,
            v,
            m,
            query_offset=np.asarray(offset) - start,
            return_lse=True,
            _wide_lse=True,
            **each,
        )
        states.append((output.astype(float), lse.astype(float)))
        start = stop
    while len(states) > 1:
        states = [functools.reduce(merge, states[i : i + 16]) for i in range(0, len(states), 16)]
    (state,) = states
    if sinks is not None:
        rows = np.broadcast_to(np.asarray(sinks, float)[:, None], state[1].shape)
        state = merge(state, (np.zeros_like(state[0]), rows))
    arithmetic = np.float64 if dtype == np.float64 else np.float32
    return state[0].astype(dtype), state[1].astype(arithmetic)


ORDERED = product(
    (
        {},
        {"is_causal": True, "query_offset": 250},
        {"is_causal": True, "query_offset": np.array([-3, 90])},
        {"window": (40, 11), "query_offset": np.array([[100], [200]])[:, 0], "sinks": [0.5] * 4},
        {"key_lengths": np.array([0, 130]), "left_padding": 17, "softcap": 3.0},
        {"alibi_slopes": [0.1, 0.2, 0.01, 0.5], "query_offset": 311, "scale": 0.4},
        {"distance_bias": normal(4, 199), "query_offset": np.array([150, -40])},
        {"scale": [0.1, 0.2, -0.3, 0.5], "softcap": [INF, 2.0, 0.5, 1e30]},
        {"scale": normal(2, 1, seed=5) * [1, 1, 1, 1], "distance_bias": normal(2, 1, 9, seed=6)},
        {"dropout_p": 0.4, "dropout_seed": 7, "query_offset": 40, "sinks": [1.0, -INF, 0.0, 9.0]},
        {"mask": True},
    ),
    (1, 3, 7, 20, 96, 311, 400),
)


@each_in_one_type(
    [
        Ordered(f"{'-'.join(options) or 'plain'}-{length}", options, length)
        for options, length in ORDERED
    ],
    "storage",
)
def test_the_bits_are_those_of_the_documented_order(case, storage):
    """312 keys in chunks of 1 make groups of groups."""
    options, length = case.options, case.length
    query = normal(2, 4, 5, 16).astype(storage)
    key, value = normal(2, 2, 1, 2, 312, 16, seed=1).astype(storage)[:, :, 0]
    options = dict(options)
    if options.pop("mask", None):
        options["mask"] = np.random.default_rng(3).random((2, 1, 5, 312)) < 0.5
    wanted = documented(query, key, value, length=length, **options)
    chunks = regard.KeyValueChunks(key, value, length=length)
    for threads in (1, 3):
        actual = stream(query, chunks, return_lse=True, threads=threads, **options)
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 255, 256, 257, 272, 273, 4097])
def test_groups_of_groups(count):
    """The last groups may be incomplete in every possible way."""
    query, key, value = normal(3, 4), normal(count, 4, seed=1), normal(count, 2, seed=2)
    chunks = regard.KeyValueChunks(key, value, length=1)
    actual = stream(query, chunks, return_lse=True)
    assert_same_bits(actual, documented(query, key, value, length=1))


@pytest.mark.parametrize(
    ("length", "mean"), [(1, 0.0), (1, 1.0), pytest.param(16, 1.0, marks=pytest.mark.slow)]
)
def test_thousands_of_chunks_are_as_exact_as_one_call(length, mean, dtype):
    query = normal(2, 4, 32).astype(dtype)
    key = normal(2, 4000 * length, 32, seed=1).astype(dtype)
    value = (mean + normal(2, 4000 * length, 8, seed=2)).astype(dtype)
    expected = reference.expected(query, key, value)
    chunks = regard.KeyValueChunks(key, value, length=length)
    output, lse = stream(query, chunks, return_lse=True)
    reference.assert_matches(expected, output=output, lse=lse)


def test_one_chunk_has_the_bits_of_a_single_call(storage):
    query, key, value = (normal(2, 3, 50, 24, seed=i).astype(storage) for i in range(3))
    options = {"is_causal": True, "query_offset": "end", "return_lse": True}
    assert_same_bits(stream(query, [(key, value)], **options), attend(query, key, value, **options))


def relative(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    """Add a term that depends on every argument."""
    for k in range(keys):
        for q in range(queries):
            distance = positions[q] - (first_key + k)
            scores[k * stride + q] += 0.01 * distance + 0.1 * head - 0.2 * (entry % 3)


def test_a_score_function_gets_the_positions_of_a_single_call():
    """This holds wherever the cuts are, and in a part of a larger call too."""
    function = regard.ScoreFunction(regard.ScoreFunction.c_type("float64")(relative))
    query = normal(2, 2, 3, 8)
    key, value = normal(2, 1, 23, 8, seed=1), normal(2, 1, 23, 5, seed=2)
    options = {"score_function": function, "query_offset": [9, 20], "is_causal": True}
    for origin in ((0, 0, 0), (1, 2, 40)):
        whole = attend(query, key, value, dropout_origin=origin, **options)
        for length in (1, 5, 23):
            chunks = regard.KeyValueChunks(key, value, length=length)
            parts = stream(query, chunks, dropout_origin=origin, **options)
            np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-14)


def test_dropout_drops_what_a_single_call_drops(dtype):
    """This holds wherever the cuts are, and in a part of a larger call too."""
    query, key = normal(2, 4, 9, 8).astype(dtype), normal(2, 2, 103, 8, seed=1).astype(dtype)
    value = np.broadcast_to(np.eye(103, dtype=dtype), (2, 2, 103, 103))
    options = {"dropout_p": 0.5, "dropout_seed": 11, "query_offset": 20}
    for origin in ((0, 0, 0), (3, 2, 5), (1, 0, 2**63 - 3)):
        whole = attend(query, key, value, dropout_origin=origin, **options)
        for length in (1, 5, 50):
            chunks = regard.KeyValueChunks(key, value, length=length)
            parts = stream(query, chunks, dropout_origin=origin, **options)
            assert np.array_equal(parts == 0, whole == 0)


QUERY, KEY, VALUE = normal(2, 6, 8), normal(2, 40, 8, seed=1), normal(2, 40, 3, seed=2)
CHUNKS = list(zip(pieces(KEY, 15), pieces(VALUE, 15), strict=True))
WHOLE = stream(QUERY, CHUNKS, return_lse=True)


class Iterable:
    def __iter__(self):
        return iter(CHUNKS)


class OldIterable:
    def __getitem__(self, number):
        return CHUNKS[number]


@pytest.mark.parametrize(
    "chunks",
    [
        tuple(CHUNKS),
        iter(CHUNKS),
        (chunk for chunk in CHUNKS),
        map(list, CHUNKS),
        Iterable(),
        OldIterable(),
        regard.KeyValueChunks(KEY, VALUE, length=15),
        ((key.tolist(), value.tolist()) for key, value in CHUNKS),
        ((key.astype(">f8"), np.asfortranarray(value)) for key, value in CHUNKS),
        [(key, value, None) for key, value in CHUNKS],
        ((key, value, np.ones(key.shape[-2], bool)) for key, value in CHUNKS),
    ],
)
def test_any_iterable(chunks):
    assert_same_bits(stream(QUERY, chunks, return_lse=True), WHOLE)


def test_chunks_without_keys_change_no_bit():
    nothing = (KEY[:, :0], VALUE[:, :0])
    chunks = [nothing, *CHUNKS[:1], nothing, *CHUNKS[1:], nothing]
    assert_same_bits(stream(QUERY, chunks, return_lse=True), WHOLE)
    output, lse = stream(QUERY, [nothing, nothing], return_lse=True, sinks=[1.5, -INF])
    assert_same_bits(output, np.zeros((2, 6, 3)))
    assert_same_bits(lse, np.repeat([[1.5], [-INF]], 6, axis=1))
    empty = regard.KeyValueChunks(*nothing)
    assert len(empty) == 1
    assert_same_bits(stream(QUERY, empty), np.zeros((2, 6, 3)))


@pytest.mark.parametrize("shape", [(), (1,), (40,), (6, 1), (6, 40), (2, 1, 40), (2, 6, 40)])
@pytest.mark.parametrize("kind", ["bool", "float", "pair"])
def test_masks_over_all_keys_and_of_chunks(kind, shape):
    bias = normal(*shape, seed=5)
    shown = np.asarray(bias < 1)
    mask = {"bool": shown, "float": bias, "pair": (shown, normal(40))}[kind]
    output, lse = stream(QUERY, CHUNKS, mask, return_lse=True)
    expected = reference.expected(QUERY, KEY, VALUE, mask)
    reference.assert_matches(expected, output=output, lse=lse)

    def part(array, start):
        return array[..., start : start + 15] if array.shape[-1:] == (40,) else array

    def with_masks():
        for number, chunk in enumerate(CHUNKS):
            start = 15 * number
            yield (
                *chunk,
                tuple(part(m, start) for m in mask) if kind == "pair" else part(mask, start),
            )

    assert_same_bits(stream(QUERY, with_masks(), return_lse=True), (output, lse))


def test_a_mask_of_zeros_and_ones_is_warned_about(monkeypatch):
    monkeypatch.setattr("regard._arguments.hints._has_warned", False)
    mask = (np.arange(40) % 2).astype(float)
    with pytest.warns(UserWarning, match="zeros and ones") as caught:
        stream(QUERY, CHUNKS, mask)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("layout", ["contiguous", "strided", "float32"])
def test_out(layout):
    if layout == "strided":
        out = np.full((3, 6, 4), np.nan).transpose(2, 1, 0)[::2]
    else:
        out = np.full((2, 6, 3), np.nan)
    chunks = CHUNKS
    if layout == "float32":
        out = out.astype(np.float32)
        chunks = [(k.astype("f4"), v.astype("f4")) for k, v in CHUNKS]
    query = QUERY.astype(out.dtype)
    wanted = stream(query, chunks)
    assert stream(query, chunks, out=out) is out
    assert_same_bits(out.copy(), wanted)


def test_out_may_lie_between_an_input():
    memory = np.zeros((2, 40, 16))
    key, out = memory[..., :8], memory[:, :6, 8:11]
    key[...] = KEY
    wanted = stream(QUERY, [(key, VALUE)])
    assert stream(QUERY, [(key, VALUE)], out=out) is out
    assert_same_bits(out.copy(), wanted)


def test_overflow_to_a_narrower_type_is_silent():
    """A single call is silent too. Two chunks of the largest float16 give the largest float16."""
    value = np.full((1, 4, 2), 65504, np.float16)
    key = np.zeros((1, 4, 2), np.float16)
    with warnings.catch_warnings(action="error"):
        output = stream(key, regard.KeyValueChunks(key, value, length=2))
        assert (output == 65504).all()
        dropped = {"dropout_p": 0.9, "dropout_seed": 1}
        output = stream(key, regard.KeyValueChunks(key, value, length=2), **dropped)
    assert np.isinf(output).any()


@pytest.mark.parametrize("place", ["key", "value"])
def test_what_is_hidden_changes_no_bit_and_what_is_seen_shows(place):
    key, value = KEY.copy(), VALUE.copy()
    {"key": key, "value": value}[place][:, 25:] = np.nan
    chunks = regard.KeyValueChunks(key, value, length=10)
    visible = [(KEY[:, :10], VALUE[:, :10]), (KEY[:, 10:20], VALUE[:, 10:20])]
    visible += [(KEY[:, 20:25], VALUE[:, 20:25])]
    wanted = stream(QUERY, visible, return_lse=True)
    assert_same_bits(stream(QUERY, chunks, return_lse=True, key_lengths=25), wanted)
    assert np.isnan(stream(QUERY, chunks)).all()


@pytest.mark.parametrize(
    "offset",
    [
        *(-(2**63), -(2**63) + 1, -(2**63) + 7, -(2**62), -41, 2**40, 2**62, 2**63 - 1 - 40),
        [-(2**63) + 1, -(2**61), 3],
        [-(2**63) + 12, -(2**63) + 30, 2**62],
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "window",
    [None, (0, 0), (3, 5), (2**62, None), (None, 2**63 - 1), (50, 2**62), (4, 2**63 - 20)],
    ids=str,
)
def test_offsets_at_the_ends_of_64_bits(offset, window):
    """There are as many queries as keys, so each chunk may have some queries that see a part of
    it."""
    query = normal(*([3] if isinstance(offset, list) else []), 2, 40, 8)
    options = {"query_offset": offset, "window": window}
    for is_causal in (False, True):
        wanted = attend(query, KEY, VALUE, is_causal=is_causal, return_lse=True, **options)
        actual = stream(query, CHUNKS, is_causal=is_causal, return_lse=True, **options)
        for a, w in zip(actual, wanted, strict=True):
            assert np.array_equal(np.isinf(a), np.isinf(w))
            np.testing.assert_allclose(a, w, rtol=1e-13, atol=1e-15)


def test_rows_of_special_numbers_merge_as_states_do():
    """Scores are -inf in one chunk and +inf in another: a state has no output there, or outweighs
    all others."""
    key = np.zeros((1, 6, 1))
    key[0, 1], key[0, 4] = -INF, INF
    value = np.arange(6.0).reshape(1, 6, 1)
    query = np.array([[[1.0], [-1.0], [np.nan]]])
    with np.errstate(all="raise"):
        output = stream(query, regard.KeyValueChunks(key, value, length=1))
    wanted = documented(query, key, value, length=1)[0]
    assert_same_bits(output, wanted)


def test_a_mask_of_two_sequences_is_one_array():
    """A tuple of two rows is one array, as in a single call, unless the two differ in kind or
    shape."""
    query, key = normal(2, 2, 4), normal(2, 3, 4)
    rows = (True, False, True), (False, True, True)
    wanted = attend(query, key, key, rows)
    assert_same_bits(stream(query, [(key, key)], rows), wanted)
