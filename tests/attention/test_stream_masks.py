"""Sparse masks in streams give the bits of dense masks, and some chunks are never read."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard._arguments.masks import SeenKeys
from regard.masks import Blocks, Ranges
from sparse_cases import NAMES, dense, in_turn, sparse_masks

stream = regard.attend_stream
BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 21, 90


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


QUERY = normal(BATCH, HEADS, Q_LEN, 8)
KEY, VALUE = normal(BATCH, 2, KV_LEN, 8, seed=1), normal(BATCH, 2, KV_LEN, 5, seed=2)
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
OPTIONS = {
    "plain": {},
    "positions": {"is_causal": True, "query_offset": [69, 3], "key_lengths": [90, 60]},
    "scores": {"softcap": 2.0, "sinks": normal(HEADS), "alibi_slopes": normal(HEADS, seed=3)},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
}


def pieces(length):
    """Yield chunks of keys and values, with their first key."""
    for start in range(0, KV_LEN, length):
        yield start, KEY[..., start : start + length, :], VALUE[..., start : start + length, :]


@pytest.mark.parametrize(("name", "scores", "length"), in_turn(NAMES, OPTIONS, [7, 32, 90]))
def test_the_bits_of_the_dense_mask(name, scores, length, dtype):
    arrays, options = [x.astype(dtype) for x in (QUERY, KEY, VALUE)], OPTIONS[scores]
    chunks = regard.KeyValueChunks(*arrays[1:], length=length)
    bias = normal(Q_LEN, KV_LEN, dtype=dtype)
    sparse, shown = MASKS[name], dense(MASKS[name], KV_LEN)
    for given, same in ((sparse, shown), ((sparse, bias), (shown, bias))):
        wanted = stream(arrays[0], chunks, same, return_lse=True, **options)
        assert_same_bits(stream(arrays[0], chunks, given, return_lse=True, **options), wanted)


@pytest.mark.parametrize("kind", ["list", "iterator"])
@pytest.mark.parametrize("name", NAMES)
def test_masks_of_chunks(name, kind):
    mask, length = MASKS[name], 32
    bias = normal(Q_LEN, KV_LEN)
    for with_bias in (False, True):
        whole = (mask, bias) if with_bias else mask
        chunks = []
        for start, key, value in pieces(length):
            own = mask[..., start : start + length]
            part = bias[..., start : start + length]
            chunks.append((key, value, (own, part) if with_bias else own))
        given = chunks if kind == "list" else iter(chunks)
        actual = stream(QUERY, given, return_lse=True)
        wanted = stream(QUERY, regard.KeyValueChunks(KEY, VALUE, length=length), whole)
        assert_same_bits(actual[0], wanted)


class Counted:
    """An array that is not in memory, and the first keys of the parts that were read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, []

    def __getitem__(self, index):
        self.read.append(index[1].start)
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("the whole array was read")


def chunks_of(mask, **options):
    """Return the first keys of the chunks of 10 that a call reads."""
    key, value = Counted(KEY), Counted(VALUE)
    stream(QUERY, regard.KeyValueChunks(key, value, length=10), mask, **options)
    assert key.read == value.read
    return key.read


BLOCKS = Blocks([0, 3], [2, 3, 7], shape=(Q_LEN, KV_LEN), block=(32, 10))
READ = [
    (Ranges(25, 48, kv_len=KV_LEN), {}, [20, 30, 40]),
    (Ranges(0, 1) | Ranges(80, 81, kv_len=KV_LEN), {}, [0, 80]),
    (Ranges([*[5] * 20, 70], [*[6] * 20, 71], kv_len=KV_LEN), {}, [0, 70]),
    (BLOCKS, {}, [20, 30, 70]),
    (BLOCKS, {"key_lengths": 40}, [20, 30]),
    (BLOCKS, {"left_padding": 75}, [70]),
    (BLOCKS[:, 25:], {}, [0, 10, 40, 50]),
    ((BLOCKS, normal(Q_LEN, KV_LEN)), {"is_causal": True, "query_offset": 10}, [20, 30]),
    (regard.masks.stack([Ranges([n], [n + 1], kv_len=9) for n in (1, 3, 3, 1)]), {}, [0]),
    (Ranges(0, np.zeros(Q_LEN, int), kv_len=KV_LEN), {}, []),
]


@pytest.mark.parametrize(("mask", "options", "wanted"), READ)
def test_chunks_that_no_query_sees_are_not_read(mask, options, wanted):
    assert chunks_of(mask, **options) == wanted


def test_no_chunk_is_requested_after_the_last_that_a_query_sees():
    requested = []

    def chunks():
        for start, key, value in pieces(10):
            requested.append(start)
            yield key, value

    told = []
    stream(QUERY, chunks(), BLOCKS[:, :34], progress=lambda *numbers: told.append(numbers))
    assert requested == [0, 10, 20, 30]
    assert told == [(30, 34), (34, 34)]
    wanted = stream(QUERY, [(KEY, VALUE)], BLOCKS[:, :34])
    actual = stream(QUERY, chunks(), BLOCKS[:, :34])
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kind", "message", "mask"),
    [
        (ValueError, "mask must broadcast to .* mask of shape \\(20, 90\\)", (20, 90)),
        (ValueError, "mask must broadcast to .* mask of shape \\(3, 21, 90\\)", (3, 21, 90)),
        (ValueError, "mask must have at most as many columns as there are keys, 90", (21, 91)),
    ],
)
def test_shapes(kind, message, mask):
    """Shapes are checked before any chunk is read."""
    mask = Ranges(0, np.ones(mask[:-1], int), kv_len=mask[-1])
    with pytest.raises(kind, match=message):
        chunks_of(mask)


def test_errors_of_iterators_and_chunks():
    wide = Ranges(KV_LEN - 1, KV_LEN + 1, kv_len=KV_LEN + 1)
    with pytest.raises(ValueError, match=r"mask must have at most as many columns .* 90, got"):
        stream(QUERY, iter([(KEY, VALUE)]), wide)
    with pytest.raises(ValueError, match=r"chunk 0: a sparse mask must have at most .* 90, got"):
        stream(QUERY, iter([(KEY, VALUE, wide)]))
    with pytest.raises(ValueError, match="chunk 0: mask must broadcast to"):
        stream(QUERY, iter([(KEY, VALUE, Ranges([0, 1, 1], 2))]))
    with pytest.raises(TypeError, match="chunk 0: mask must be None"):
        stream(QUERY, iter([(KEY, VALUE, wide)]), Ranges(0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_that_a_mask_shows(name):
    """The visible keys of ranges are exact; blocks give at least the visible keys. The same holds
    for views."""
    random = np.random.default_rng(0)
    for _ in range(40):
        query, key = random.integers(0, Q_LEN), random.integers(0, KV_LEN)
        view = MASKS[name][..., query : query + random.integers(12), key : key + 30]
        seen, shown = SeenKeys(view), view.to_dense().any(axis=tuple(range(view.ndim - 1)))
        is_exact = isinstance(view, Ranges)
        for start in range(0, 30, 5):
            for length in (1, 7):
                some = bool(shown[start : start + length].any())
                told = seen.any(start, start + length)
                assert told == some if is_exact else told >= some
        if is_exact:
            keys = np.nonzero(shown)[0]
            assert (seen.first, seen.end) == ((keys[0], keys[-1] + 1) if len(keys) else (0, 0))


@pytest.mark.parametrize(("query_type", "key_type"), [("f2", "f2"), ("f4", "f8"), ("f8", "f4")])
def test_a_score_function_of_the_type_that_is_computed_in(query_type, key_type):
    wide = max(query_type, key_type, "f4")
    types = {"f4": "float32", "f8": "float64"}

    def negated(scores, queries, keys, stride, *others):
        for i in range(queries):
            for k in range(keys):
                scores[k * stride + i] *= -1

    functions = {
        kind: regard.ScoreFunction(regard.ScoreFunction.c_type(dtype)(negated))
        for kind, dtype in types.items()
    }
    arrays = [QUERY.astype(query_type), KEY.astype(key_type), VALUE.astype(key_type)]
    chunks = regard.KeyValueChunks(*arrays[1:], length=40)
    actual = stream(arrays[0], chunks, score_function=functions[wide])
    wanted = stream(-arrays[0], chunks)
    assert actual.dtype == wanted.dtype
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-14 if wide == "f8" else 1e-3)
    other = functions["f4" if wide == "f8" else "f8"]
    with pytest.raises(TypeError, match="score_function must be of the type"):
        stream(arrays[0], chunks, score_function=other)
