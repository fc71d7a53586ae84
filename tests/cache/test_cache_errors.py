"""Test invalid arguments of a cache: the class of the error, a message that names the argument, and
the cache left as it was."""

import copy
import pickle

import numpy as np
import pytest

import regard
from cache_kinds import loaded
from cache_model import normal, tokens, told
from messages import says
from reference import assert_same_bits
from rotation import Rotation

pytestmark = pytest.mark.usefixtures("silence")


KINDS = {
    "capacity": {"capacity": 12},
    "window": {"keep_last": 3, "keep_first": 1, "capacity": 8},
    "growing": {},
    "pages": {"page_size": 16},
}


CACHES = Rotation(
    "cache",
    [f"{kind}{file}{int8}" for kind in KINDS for file in ("", " file") for int8 in ("", " int8")],
)
pytest_generate_tests = CACHES.generate


@pytest.fixture
def cache(request, tmp_path):
    """Yield caches of each kind. Each test must leave its cache unchanged and usable."""
    kind, *more = CACHES.value(request).split()
    options = KINDS[kind] | ({"dtype": "int8"} if "int8" in more else {})
    made = regard.KVCache(2, 3, 8, 5, **options)
    if "file" in more:
        made = loaded(made, tmp_path / "cache")
    with made as cache:
        cache.append(*tokens(0, 2, 7, kv_heads=3), lengths=[7, 4])
        before, same = told(cache), cache.fork()
        yield cache
        assert told(cache) == before == told(same)
        cache.append(*tokens(1, 2, 1, kv_heads=3))
        cache.attend(normal(0, 2, 3, 1, 8))


def pair(**changes):
    key, value = tokens(9, 2, 4, kv_heads=3)
    return {"key": key, "value": value} | changes


APPEND = [
    ("key", normal(0, 2, 3, 4, 7), ValueError, ["key", "8", "7"]),
    ("key", normal(0, 2, 2, 4, 8), ValueError, ["key", "3", "2"]),
    ("key", normal(0, 1, 3, 4, 8), ValueError, ["key", "2", "1"]),
    ("key", normal(0, 2, 4, 3, 8), ValueError, ["key", "4", "heads", "length"]),
    ("key", normal(0, 3, 4, 8), ValueError, ["key", "(3, 4, 8)"]),
    ("key", normal(0, 1, 2, 3, 4, 8), ValueError, ["key"]),
    ("key", np.float64(1), ValueError, ["key", "()"]),
    ("key", normal(0, 2, 3, 4, 8) * 1j, TypeError, ["key", "complex128"]),
    ("key", normal(0, 2, 3, 4, 8).astype(object), TypeError, ["key", "object"]),
    ("key", None, TypeError, ["key", "None"]),
    ("key", "text", TypeError, ["key"]),
    ("value", normal(0, 2, 3, 4, 8), ValueError, ["value", "5", "8"]),
    ("value", normal(0, 2, 3, 3, 5), ValueError, ["value", "4", "3"]),
    ("value", None, TypeError, ["value", "None"]),
    ("value", normal(0, 2, 3, 4, 5).astype("M8[s]"), TypeError, ["value", "datetime64[s]"]),
    ("lengths", [1, 5], ValueError, ["lengths", "4", "5"]),
    ("lengths", [-1, 2], ValueError, ["lengths", "0", "-1"]),
    ("lengths", [2**64, 2], ValueError, ["lengths"]),
    ("lengths", np.uint64([2**63, 2]), ValueError, ["lengths", str(2**63)]),
    ("lengths", [1], ValueError, ["lengths", "(2,)", "(1,)"]),
    ("lengths", 3, ValueError, ["lengths", "(2,)", "()"]),
    ("lengths", [1.0, 2.0], TypeError, ["lengths", "float64"]),
    ("lengths", [True, False], TypeError, ["lengths", "bool"]),
    ("lengths", "ab", TypeError, ["lengths"]),
]


@pytest.mark.parametrize(("name", "given", "error", "words"), APPEND)
def test_append(name, given, error, words, cache):
    with pytest.raises(error, match=says(*words)):
        cache.append(**pair(**{name: given}))


INFINITE = [("key", np.nan), ("key", np.inf), ("value", -np.inf), ("value", np.nan), ("key", 1e39)]


@pytest.mark.every("cache")
@pytest.mark.parametrize(("name", "number"), INFINITE)
def test_what_has_no_scale(name, number, cache):
    """The check covers only what is stored: padding may be anything."""
    given = pair(lengths=[2, 3])
    given[name][1, 2, 3, 4] = number
    if "int8" in repr(cache):
        fork = cache.fork()
        fork.append(**given)
        assert np.isfinite(fork.attend(normal(0, 2, 3, 1, 8))).all()
        given["lengths"] = [1, 4]
        got = "nan" if np.isnan(number) else "inf"
        with pytest.raises(ValueError, match=says(name, "finite", "int8", "float32", got)):
            cache.append(**given)


@pytest.mark.parametrize(("kind", "most", "capacity"), [("capacity", 5, "12"), ("window", 4, "8")])
def test_beyond_capacity(kind, most, capacity):
    cache = regard.KVCache(2, 3, 8, 5, **KINDS[kind])
    cache.append(*tokens(0, 2, 7, kv_heads=3), lengths=[7, 4])
    before = told(cache)
    for lengths in (None, [most + 1, 0]):
        with pytest.raises(ValueError, match=says("capacity", capacity)):
            cache.append(*tokens(1, 2, most + 1, kv_heads=3), lengths=lengths)
        assert told(cache) == before
    cache.append(*tokens(1, 2, most + 1, kv_heads=3), lengths=[most, 0])


OVERFULL = [  # lengths before, counts, and the count and length that the message names
    ([45, 10], [6, 20], 6, 51),
    ([10, 45], [40, 6], 6, 51),
    ([50, 0], [1, 50], 1, 51),
    ([45, 10], None, 20, 65),
]


@pytest.mark.parametrize(("before", "counts", "count", "length"), OVERFULL)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("page_size", [None, 16])
def test_the_entry_that_is_overfull_is_told(page_size, dtype, before, counts, count, length):
    cache = regard.KVCache(2, 3, 8, 5, capacity=50, page_size=page_size, dtype=dtype)
    cache.append(*tokens(0, 2, max(before), kv_heads=3), lengths=before)
    new = 20 if counts is None else max(counts)
    message = f"capacity 50, and appending {count} would make it {length} tokens long"
    with pytest.raises(ValueError, match=message):
        cache.append(*tokens(1, 2, new, kv_heads=3), lengths=counts)
    assert cache.lengths.tolist() == before


TRUNCATE = [
    (8, ValueError, ["length", "7", "8"]),
    (-1, ValueError, ["length", "-1"]),
    ([7, 5], ValueError, ["length", "4", "entry 1", "5"]),
    ([7, -2], ValueError, ["length", "-2"]),
    ([1], ValueError, ["length", "(1,)"]),
    (2.0, TypeError, ["length", "float64"]),
    (None, TypeError, ["length"]),
    (True, TypeError, ["length", "bool"]),
]


@pytest.mark.parametrize(("length", "error", "words"), TRUNCATE)
def test_truncate(length, error, words, cache):
    with pytest.raises(error, match=says(*words)):
        cache.truncate(length)


REORDER = [
    ([0, 2], ValueError, ["batch_indices", "1", "2"]),
    ([-2, 0], ValueError, ["batch_indices", "-1 for an empty entry", "-2"]),
    ([2**70], ValueError, ["batch_indices"]),
    (1, ValueError, ["batch_indices", "()"]),
    ([[0, 1]], ValueError, ["batch_indices", "(1, 2)"]),
    ([0.0, 1.0], TypeError, ["batch_indices", "float64"]),
    ([False, True], TypeError, ["batch_indices", "bool"]),
    (None, TypeError, ["batch_indices"]),
]


@pytest.mark.parametrize(("indices", "error", "words"), REORDER)
def test_reorder(indices, error, words, cache):
    with pytest.raises(error, match=says(*words)):
        cache.reorder(indices)


ATTEND = [
    ({"query": normal(0, 2, 3, 1, 7)}, ValueError, ["query", "8", "7"]),
    ({"query": normal(0, 1, 3, 1, 8)}, ValueError, ["query", "2", "1"]),
    ({"query": normal(0, 3, 1, 8)}, ValueError, ["query", "(3, 1, 8)"]),
    ({"query": normal(0, 2, 4, 1, 8)}, ValueError, ["query", "3 kv_heads", "got 4"]),
    ({"query": normal(0, 2, 1, 1, 8)}, ValueError, ["query", "3 kv_heads", "got 1"]),
    ({"query": None}, TypeError, ["query", "None"]),
    ({"query": normal(0, 2, 3, 1, 8) * 1j}, TypeError, ["query", "complex128"]),
    ({"key_lengths": [3, 3]}, TypeError, ["key_lengths", "knows its lengths"]),
    ({"precision": "int8"}, ValueError, ["precision", "in a cache", "8-bit integers"]),
    ({"pages": np.zeros((2, 1), np.int32)}, TypeError, ["KVCache.attend()", "pages"]),
    ({"query": normal(0, 2, 3, 8, 8)}, ValueError, ["query_offset", "8 queries", "of 7"]),
    ({"dropout": 0.5}, TypeError, ["dropout"]),
    ({"query_offset": [1, 2, 3], "window": (1, 0)}, ValueError, ["query_offset", "(2,)", "(3,)"]),
    ({"query_offset": 1.5, "window": (1, 0)}, TypeError, ["query_offset", "float"]),
    ({"mask": np.ones((1, 6), bool)}, ValueError, ["mask", "7", "6"]),
    ({"mask": np.ones((1, 7), int)}, TypeError, ["mask", "int64"]),
    ({"mask": np.ones((3, 1, 1, 7), bool)}, ValueError, ["mask"]),
    ({"mask": np.ones((1, 2, 3, 1, 7), bool)}, ValueError, ["mask"]),
    ({"mask": regard.masks.Ranges(0, 1, kv_len=8)}, ValueError, ["mask", "7", "(1, 8)"]),
    ({"mask": regard.masks.Ranges([0, 0], 7)}, ValueError, ["mask", "(2, 7)"]),
    (
        {"mask": regard.masks.Ranges(np.zeros((3, 1, 1), int), 7)},
        ValueError,
        ["mask", "(3, 1, 1, 7)"],
    ),
    ({"is_causal": 1}, TypeError, ["is_causal"]),
    ({"return_lse": 1}, TypeError, ["return_lse"]),
    ({"return_weights": None}, TypeError, ["return_weights"]),
    ({"query_offset": [1, 2, 3]}, ValueError, ["query_offset", "(3,)"]),
    ({"query_offset": 1.0}, TypeError, ["query_offset"]),
    ({"window": 3}, TypeError, ["window"]),
    ({"window": (1, 2, 3)}, ValueError, ["window", "3"]),
    ({"window": np.array([1.0, 2.0])}, TypeError, ["window"]),
    ({"window": (-1, 2)}, ValueError, ["window", "-1"]),
    ({"scale": "big"}, TypeError, ["scale"]),
    ({"softcap": 0.0}, ValueError, ["softcap"]),
    ({"sinks": np.zeros(2)}, ValueError, ["sinks", "3", "2"]),
    ({"alibi_slopes": np.zeros(4)}, ValueError, ["alibi_slopes", "3", "4"]),
    ({"scale": np.ones(4)}, ValueError, ["scale", "3", "4"]),
    ({"softcap": [1.0, 0.0, 1.0]}, ValueError, ["softcap", "greater than 0", "inf"]),
    ({"distance_bias": np.zeros((4, 5))}, ValueError, ["distance_bias", "(3, 2 n - 1)", "(4, 5)"]),
    ({"distance_bias": np.zeros((3, 4))}, ValueError, ["distance_bias", "odd", "(3, 4)"]),
    ({"score_function": abs}, TypeError, ["score_function", "regard.ScoreFunction"]),
    ({"threads": 0}, ValueError, ["threads"]),
    ({"out": np.zeros((2, 3, 1, 4))}, ValueError, ["out"]),
    ({"out": np.zeros((2, 3, 1, 5), np.float32)}, TypeError, ["out", "float64", "float32"]),
    ({"out": [1]}, TypeError, ["out"]),
    ({"out": np.broadcast_to(np.zeros(5), (2, 3, 1, 5))}, ValueError, ["out", "read-only"]),
]


@pytest.mark.parametrize(("changes", "error", "words"), ATTEND)
def test_attend(changes, error, words, cache):
    with pytest.raises(error, match=says(*words)):
        cache.attend(**{"query": normal(0, 2, 3, 1, 8)} | changes)


@pytest.mark.parametrize("kind", [np.float32, "float16", "bfloat16", ">f4"])
def test_a_query_that_is_a_view_of_memory(kind):
    if kind == "bfloat16":
        kind = pytest.importorskip("ml_dtypes").bfloat16
    cache = regard.KVCache(1, 1, 4)
    cache.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
    flat = np.ones((1, 4), kind)
    try:
        view = memoryview(flat)
    except ValueError:  # NumPy raises this for bfloat16
        return
    with pytest.raises(ValueError, match=says("query", "(1, heads, q_len, 4)", "(1, 4)")):
        cache.attend(view)


MOST = str(2**63 - 1)
MAKE = [
    ({"batch": -1}, ValueError, ["batch", "0", "-1"]),
    ({"max_bytes": 0}, ValueError, ["max_bytes", "1", "0"]),
    ({"max_bytes": 2.5}, TypeError, ["max_bytes", "float"]),
    ({"batch": 1.0}, TypeError, ["batch", "float"]),
    ({"num_kv_heads": 0}, ValueError, ["num_kv_heads"]),
    ({"head_dim": -1}, ValueError, ["head_dim"]),
    ({"value_dim": 0}, ValueError, ["value_dim"]),
    ({"capacity": -1}, ValueError, ["capacity"]),
    ({"capacity": True}, TypeError, ["capacity", "bool"]),
    ({"keep_last": 0}, ValueError, ["keep_last", "0"]),
    ({"keep_last": (3, 0)}, TypeError, ["keep_last", "tuple"]),
    ({"keep_first": 2}, ValueError, ["keep_first", "keep_last", "2"]),
    ({"keep_last": 3, "keep_first": -1}, ValueError, ["keep_first", "-1"]),
    ({"keep_last": 3, "keep_first": 2, "capacity": 5}, ValueError, ["capacity", "6", "5"]),
    ({"dtype": np.uint8}, TypeError, ["dtype", "float16", "int8", "uint8"]),
    ({"dtype": "int4"}, TypeError, ["dtype", "int4"]),
    ({"page_size": 24}, ValueError, ["page_size", "16", "24"]),
    ({"page_size": 0}, ValueError, ["page_size", "16", "0"]),
    ({"page_size": -16}, ValueError, ["page_size", "16"]),
    ({"page_size": 16.0}, TypeError, ["page_size", "float"]),
    ({"page_size": True}, TypeError, ["page_size", "bool"]),
    ({"dtype": np.complex64}, TypeError, ["dtype", "complex64"]),
    ({"dtype": None}, TypeError, ["dtype", "None"]),
    ({"dtype": "floaty"}, TypeError, ["dtype", "floaty"]),
    ({"dtype": {"a": ("end", np.inf)}}, TypeError, ["dtype", "float16", "inf"]),
    ({"dtype": 3}, TypeError, ["dtype", "3"]),
    ({"batch": 2**31}, ValueError, ["batch", str(2**31 - 1), str(2**31)]),
    ({"num_kv_heads": 2**63}, ValueError, ["num_kv_heads", MOST, str(2**63)]),
    ({"head_dim": 10**30}, ValueError, ["head_dim", MOST, str(10**30)]),
    ({"value_dim": 10**30}, ValueError, ["value_dim", MOST, str(10**30)]),
    ({"capacity": 10**30}, ValueError, ["capacity", MOST, str(10**30)]),
    ({"keep_last": 10**30}, ValueError, ["keep_last", MOST, str(10**30)]),
    ({"keep_last": 3, "keep_first": 10**30}, ValueError, ["keep_first", MOST, str(10**30)]),
    ({"page_size": 2**64}, ValueError, ["page_size", MOST, str(2**64)]),
]


@pytest.mark.parametrize(("changes", "error", "words"), MAKE)
def test_make(changes, error, words):
    with pytest.raises(error, match=says(*words)):
        regard.KVCache(**{"batch": 1, "num_kv_heads": 1, "head_dim": 4} | changes)


NO_ARRAY = [
    ({"capacity": 2**62}, ["(1, 4611686018427387904, 4)", str(2**66)]),
    ({"head_dim": 10**12, "capacity": 10**12}, [str(4 * 10**24)]),
    ({"head_dim": 2**61}, ["(1, 192, 2305843009213693952)", str(192 * 2**63)]),
    ({"num_kv_heads": 2**40, "value_dim": 2**40}, [str(192 * 2**82)]),
    (
        {"num_kv_heads": 2**54, "head_dim": 1, "value_dim": 1, "dtype": "int8"},
        ["float32"],
    ),  # the array of its scales
    ({"page_size": 2**62}, [str(2**66)]),
]


@pytest.mark.parametrize(("sizes", "words"), NO_ARRAY)
def test_what_no_array_can_hold(sizes, words):
    with pytest.raises(MemoryError, match=says("no memory", "bytes", MOST, *words)):
        regard.KVCache(**{"batch": 1, "num_kv_heads": 1, "head_dim": 4} | sizes)


def test_an_append_that_no_array_can_hold():
    cache = regard.KVCache(1, 1, 1, dtype="f8")
    new = np.broadcast_to(np.float64(1), (1, 2**50, 1))
    with pytest.raises(MemoryError, match=r"no memory for .* pages"):
        cache.append(new, new)
    assert len(cache) == 0
    cache.append(new[:, :20], new[:, :20])
    assert cache.attend(np.ones((1, 1, 1))) == 1


@pytest.mark.parametrize("most", [{"keep_last": 2**62}, {"capacity": 2**63 - 1, "page_size": 16}])
def test_the_largest_limits(most):
    sinks = {"keep_first": 2**62} if "keep_last" in most else {}
    caches = [regard.KVCache(2, 3, 8, 5, **sizes) for sizes in ({}, most, most | sinks)]
    for cache in caches:
        cache.append(*tokens(0, 2, 40, kv_heads=3), lengths=[40, 30])
        cache.truncate([35, 30])
        cache.append(*tokens(1, 2, 3, kv_heads=3))
    query = normal(0, 2, 3, 1, 8)
    for cache in caches[1:]:
        assert_same_bits(cache.attend(query), caches[0].attend(query))


def test_a_closed_cache_says_so(tmp_path):
    for page_size in (None, 16):
        with regard.KVCache(1, 1, 4, page_size=page_size) as cache:
            pass
        cache.close()
        assert repr(cache) == "KVCache(closed)"
        one = np.ones((1, 1, 4))
        for call in (
            lambda: cache.append(one, one),  # noqa: B023
            lambda: cache.attend(one),  # noqa: B023
            lambda: cache.truncate(0),
            lambda: cache.reorder([0]),
            lambda: len(cache),
            lambda: cache.nbytes,
            lambda: cache.lengths,
            lambda: cache.keys,
            lambda: cache.values,
            cache.fork,
            lambda: cache.save(tmp_path / "cache"),
        ):
            with pytest.raises(ValueError, match="closed"):
                call()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_forks(copied):
    with pytest.raises(TypeError, match="fork"):
        copied(regard.KVCache(1, 1, 4))
