"""Wrong calls of caches: the error is told, and every kind of cache stays as it was and usable."""

import copy
import pickle

import numpy as np
import pytest

import regard
from cache_tokens import normal, packed_tokens, tokens, told
from messages import check, each
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
KEY, VALUE = tokens(9, 2, 4, kv_heads=3)
QUERY = normal(0, 2, 3, 1, 8)
K, V, _ = packed_tokens(0, [2, 2], kv_heads=3)
Q, LONG = normal(0, 4, 3, 8), normal(0, 9, 3, 8)
BIAS = np.ones((4, 9, 3), bool)
PAGES, PAGED_QUERY = np.zeros((5, 4, 2, 8), np.float32), np.zeros((2, 4, 1, 8), np.float32)
BYTES, ONE = PAGES.astype(np.int8), {"batch": 1, "num_kv_heads": 1, "head_dim": 4}
FLOAT8 = {"dtype": "float8_e4m3fn", "head_dim": 64}
IN_KEYS = {"value_from_key": True, "head_dim": 8, "value_dim": 4}
FEW = regard.masks.Ranges(0, 1, kv_len=8)


def filled(kind="growing int8"):
    kind, *more = kind.split()
    options = KINDS[kind] | ({"dtype": "int8"} if "int8" in more else {})
    cache = regard.KVCache(2, 3, 8, 5, **options)
    cache.append(*tokens(0, 2, 7, kv_heads=3), lengths=[7, 4])
    return cache


@pytest.fixture
def cache(request, tmp_path):
    """Yield caches of each kind. A test must leave its cache unchanged and usable."""
    kind = CACHES.value(request)
    with filled(kind) as cache:
        if "file" in kind:
            cache.save(tmp_path / "cache")
            cache = regard.KVCache.load(tmp_path / "cache")
        before, same = told(cache), cache.fork()
        yield cache
        assert told(cache) == before == told(same)
        cache.append(*tokens(1, 2, 1, kv_heads=3))
        cache.attend(QUERY)


CALLS = [
    (lambda c: c.append(KEY[..., :7], VALUE), ValueError, "key must be (2, 3 ... got shape (2"),
    (lambda c: c.append(KEY[:, :2], VALUE), ValueError, "key must be (2, 3, new ... got shape (2"),
    (lambda c: c.append(KEY * 1j, VALUE), TypeError, "key must be an array of ... got complex128"),
    (lambda c: c.append(KEY, KEY), ValueError, "value must be (2, 3, 4 ... got shape (2"),
    (lambda c: c.append(KEY, VALUE.astype("M8[s]")), TypeError, "value must"),
    (lambda c: c.append(KEY, VALUE, [1, 5]), ValueError, "lengths must be from 0 to ... got 5"),
    (lambda c: c.append(KEY, VALUE, [-1, 2]), ValueError, "lengths must be from 0 to ... got -1"),
    (lambda c: c.append_ragged(K, V, [0, 4]), ValueError, "starts must be an ... got shape (2,)"),
    (lambda c: c.append_ragged(K, V[..., :4], [0, 2, 4]), ValueError, "value must ... got shape"),
    (lambda c: c.truncate(-1), ValueError, "length must be from 0 to ... got -1"),
    (lambda c: c.truncate([7, 5]), ValueError, "length must be from 0 to ... got 5"),
    (lambda c: c.truncate(2.0), TypeError, "length must be an int or ... got float64"),
    (lambda c: c.reorder([0, 2]), ValueError, "batch_indices must be from 0 to ... got 2"),
    (lambda c: c.reorder([-2, 0]), ValueError, "batch_indices must be from 0 to ... got -2"),
    (lambda c: c.drop([0, 2]), ValueError, "entries must be from 0 to 1, got 2"),
    (lambda c: c.drop("first"), TypeError, "entries must be an int or ... got <U5"),
    (lambda c: c.adopt(c), ValueError, "other must be another cache, got the cache itself"),
    (lambda c: c.adopt([1]), TypeError, "other must be a KVCache, got list"),
    (lambda c: c.adopt(c.fork(), 2), ValueError, "entry must be from 0 to 1, got 2"),
    (lambda c: c.adopt(c.fork(), -1), ValueError, "entry must be at least 0, got -1"),
    (lambda c: c.adopt(c.fork([])), ValueError, "entry must be the number of ... got 0"),
    (lambda c: c.attend(QUERY[..., :7]), ValueError, "query must be (2, heads ... got shape (2"),
    (lambda c: c.attend(np.ones((2, 4, 1, 8))), ValueError, "query must have a ... got 4 in"),
    (lambda c: c.attend(QUERY * 1j), TypeError, "query must be an array of ... got complex128"),
    (lambda c: c.attend(QUERY, precision="int8"), ValueError, "precision must be ... got 'int8'"),
    (lambda c: c.attend(np.ones((2, 3, 8, 8))), ValueError, "query_offset must ... append their"),
    (lambda c: c.attend(QUERY, FEW), ValueError, "mask must broadcast to (... ... got a sparse"),
    (lambda c: c.attend_ragged(Q, [0, 4]), ValueError, "starts must have shape"),
    (lambda c: c.attend_ragged(LONG, [0, 2, 9]), ValueError, "query_offset must ... append their"),
    (lambda c: c.attend_ragged(np.ones((4, 4, 8)), [0, 1, 4]), ValueError, "query must ... got 4"),
    (lambda c: c.attend_ragged(Q, [0, 1, 4], BIAS), ValueError, "mask must ... got shape (4"),
    (lambda c: c.attend_ragged(Q, [0, 1, 4], precision="int8"), ValueError, "precision"),
    (lambda c: c.explain(QUERY[..., :7]), ValueError, "query must be (2, heads ... got shape (2"),
    (lambda c: c.keep(2, [30]), ValueError, "entry must be from 0 to 1, got 2"),
    (lambda c: c.save(3), TypeError, "path must be a str or a path, got int"),
    (lambda c: c.save(""), ValueError, "path must name a file, got an empty str"),
    (lambda c: c.save("a\0b"), ValueError, "path must have no null characters, got 'a\\x00b'"),
    (lambda c: c.save("/nowhere/cache"), FileNotFoundError, "path must ... got '/nowhere/cache'"),
    (lambda c: c.save("/"), IsADirectoryError, "path must name a file, got the folder '/'"),
    (lambda c: regard.KVCache.load("/nowhere/cache", mmap=1), TypeError, "mmap must ... got int"),
    (lambda c: regard.KVCache.load("/nowhere/cache"), FileNotFoundError, "[Errno 2] No such file"),
    (lambda c: regard.KVCache.load("/"), ValueError, "/ is not a file"),
    (lambda c: copy.deepcopy(c), TypeError, "a KVCache is copied with fork()"),
    (lambda c: pickle.dumps(c), TypeError, "a KVCache is copied with fork(), and kept with"),
]
CONSTRUCTORS = [
    *(
        ({name: 0}, ValueError, f"{name} must be at least 1, got 0")
        for name in ("max_bytes", "num_kv_heads", "head_dim", "value_dim", "keep_last")
    ),
    ({"batch": -1}, ValueError, "batch must be at least 0, got -1"),
    ({"capacity": -1}, ValueError, "capacity must be at least 0, got -1"),
    ({"keep_first": 2}, ValueError, "keep_first must be 0 without keep_last, got 2"),
    ({"keep_last": 3, "keep_first": 2, "capacity": 5}, ValueError, "capacity must be at"),
    ({"page_size": 0}, ValueError, "page_size must be at least 16, got 0"),
    ({"dtype": "floaty"}, TypeError, "dtype must be float16, bfloat16, float32 ... got 'floaty'"),
    ({"dtype": "q4_1", "head_dim": 40}, ValueError, "head_dim must be a multiple of ... got 40"),
    ({"dtype": "q4_1", "head_dim": 64, "value_dim": 33}, ValueError, "value_dim must ... got 33"),
    ({"dtype": "q4_1", "head_dim": 64, "key_scales": 1.0}, TypeError, "key_scales must be left"),
    ({"value_scales": 2}, TypeError, "value_scales must be left out with"),
    ({"key_means": [[1.0]]}, TypeError, "key_means must be left out with dtype float32"),
    (FLOAT8 | {"key_means": "large"}, TypeError, "key_means must be an array of floats, got"),
    (FLOAT8 | {"key_means": 1.0}, ValueError, "key_means must have shape ... got shape ()"),
    (FLOAT8 | {"head_dim": 1, "num_kv_heads": 1, "key_means": [[np.inf]]}, ValueError, "key_means"),
    (IN_KEYS | FLOAT8 | {"key_means": 1.0}, ValueError, "key_means must be left out with"),
    ({"value_from_key": 1}, TypeError, "value_from_key must be True or False, got int"),
    (IN_KEYS | {"value_dim": 9}, ValueError, "value_dim must be at most head_dim ... got 9"),
    (IN_KEYS | FLOAT8 | {"value_scales": 2}, ValueError, "value_scales must be left out, or"),
    (FLOAT8 | {"key_scales": [1, 2, 3]}, ValueError, "key_scales must be a ... got shape (3,)"),
    (FLOAT8 | {"value_scales": np.nan}, ValueError, "value_scales must be from ... got nan"),
    (FLOAT8 | {"key_scales": "large"}, TypeError, "key_scales must be an array of floats, got"),
    ({"capacity": 2**62}, MemoryError, "no memory for 73786976294838206464 bytes, float32"),
    ({"page_size": 2**62}, MemoryError, "no memory for 73786976294838206464 bytes, float32"),
]
OF_LAYERS = [
    ({"keep_last": [4, None]}, ValueError, "keep_last must be one value, or ... got 2"),
    ({"dtype": ["q4_1", "int8", "int8"]}, ValueError, "head_dim must be a multiple of ... got 4"),
    ({"keep_last": [4, 400, None], "capacity": 300}, ValueError, "capacity must be at"),
    (
        {"num_kv_heads": [1, 2, 1], "key_scales": [1, [1, 2, 3], 1]} | FLOAT8,
        ValueError,
        "key_scales must be a number, or ... got shape (3,)",
    ),
    ({"key_means": [None]} | FLOAT8, ValueError, "key_means must be one value, or ... got 1"),
    ({"layers": 0}, ValueError, "layers must be at least 1, got 0"),
]
PAGED = {
    "query": PAGED_QUERY,
    "key_pages": PAGES,
    "value_pages": PAGES,
    "block_table": [[0, 1], [2, 3]],
    "lengths": [5, 2],
}
IN_BYTES = {"key_pages": BYTES, "value_pages": BYTES, "key_scales": 1.0, "value_scales": 1.0}
OF_PAGES = [
    ({"key_pages": PAGES[0]}, ValueError, "key_pages must have 4 axes, the ... got shape (4"),
    ({"value_pages": PAGES[:4]}, ValueError, "value_pages must have the first ... got shape (4"),
    ({"value_pages": PAGES.astype("f8")}, TypeError, "value_pages must have the ... got float64"),
    ({"key_pages": np.zeros((5, 4, 2, 16), "f4")[..., ::2]}, ValueError, "key_pages"),
    ({"key_pages": BYTES.view("u1")}, TypeError, "key_pages must ... got uint8; ... ml_dtypes"),
    (IN_BYTES | {"key_scales": None}, TypeError, "key_scales must be given with pages of int8"),
    ({"key_scales": 1.0}, TypeError, "key_scales must be left out with pages of float32"),
    (IN_BYTES | {"key_scales": "1"}, TypeError, "key_scales must be an array of floats, got <U1"),
    (IN_BYTES | {"key_scales": -1.0}, ValueError, "key_scales must be at least 0 ... got -1.0"),
    ({"block_table": [0, 1]}, ValueError, "block_table must be (batch, columns), got shape (2,)"),
    ({"block_table": [[0.0], [1.0]]}, TypeError, "block_table must be an integer ... got float64"),
    ({"block_table": [[0, 5], [2, 3]]}, IndexError, "block_table must name pages ... got 5 in"),
    ({"block_table": [[0, 1], [-1, 3]]}, IndexError, "block_table must name pages ... got -1 in"),
    ({"lengths": [9, 2]}, ValueError, "lengths must be from 0 to ... got 9 for"),
    ({"lengths": [5, -1]}, ValueError, "lengths must be from 0 to ... got -1 for"),
    ({"lengths": [5, 1], "query": np.ones((2, 4, 2, 8), "f4")}, ValueError, "lengths ... got 1"),
    ({"query": PAGED_QUERY[:, :3]}, ValueError, "query must have a multiple of ... got 3 in"),
    ({"query": np.zeros((1, 4, 8)), "starts": [0, 1]}, ValueError, "starts must ... got shape"),
    ({"layout": "NDH"}, ValueError, "layout must be 'NHD' or 'HND', got 'NDH'"),
    ({"precision": "int8"}, ValueError, "precision must be None or ... got 'int8': 8-bit"),
]


@each(CALLS)
def test_calls(wrong, error, parts, cache):
    check(lambda: wrong(cache), error, parts)


MADE = [
    *((lambda c=c: regard.KVCache(**ONE | c), *rest) for c, *rest in CONSTRUCTORS),
    *((lambda c=c: regard.KVCaches(**{"layers": 3} | ONE | c), *rest) for c, *rest in OF_LAYERS),
    *((lambda c=c: regard.paged_attention(**PAGED | c), *rest) for c, *rest in OF_PAGES),
]


@each(MADE)
def test_caches_and_pages(wrong, error, parts):
    check(wrong, error, parts)


def test_values_in_keys():
    cache = regard.KVCache(**ONE | IN_KEYS)
    key = np.ones((cache.batch, cache.num_kv_heads, 3, 8))
    check(lambda: cache.append(key, key[..., :4]), TypeError, "value must be left out: the values")
    check(lambda: cache.append(key[..., :7]), ValueError, "key must be ... got shape")
    other = regard.KVCache(**ONE | {"head_dim": 8})
    check(lambda: other.append(key), TypeError, "value must be given, unless the cache")
    assert len(cache) == len(other) == 0


def test_layers_of_caches():
    caches = regard.KVCaches(2, 1, 1, 4)
    check(lambda: regard.LayerCache(), TypeError, "caches[layer]")
    check(lambda: caches[2], IndexError, "there are 2 layers, got layer 2")
    check(lambda: caches.adopt(filled()), TypeError, "other must be ... got KVCache")
    for each_of_them in (caches, caches[0]):
        check(lambda: pickle.dumps(each_of_them), TypeError, "fork()")  # noqa: B023


OVERFULL = [  # lengths before, counts, and the count and length that the message names
    ([45, 10], [6, 20], 6, 51),
    ([50, 0], [1, 50], 1, 51),
    ([45, 10], None, 20, 65),
]


@pytest.mark.parametrize(("before", "counts", "count", "length"), OVERFULL)
@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"page_size": 16}], ids=str)
def test_the_entry_that_is_overfull_is_told(options, before, counts, count, length):
    cache = regard.KVCache(2, 3, 8, 5, capacity=50, **options)
    cache.append(*tokens(0, 2, max(before), kv_heads=3), lengths=before)
    new = tokens(1, 2, 20 if counts is None else max(counts), kv_heads=3)
    parts = f"capacity 50 ... appending {count} would make it {length} tokens long"
    check(lambda: cache.append(*new, lengths=counts), ValueError, parts)
    assert cache.lengths.tolist() == before
    if counts:
        key, value, starts = packed_tokens(1, counts, kv_heads=3)
        check(lambda: cache.append_ragged(key, value, starts), ValueError, parts)
        assert cache.lengths.tolist() == before


KEPT = [  # after an append of positions 25 to 54
    (lambda c: c.keep(0, [24]), ValueError, "positions ... from 25 to 54 ... got 24"),
    (lambda c: c.keep(0, [54, 55]), ValueError, "positions ... 25 ... 54 ... got 55"),
    (lambda c: c.keep(0, [30, 30]), ValueError, "positions must increase ... got 30"),
    (lambda c: c.keep(0, [30.5]), TypeError, "positions must be ... got float64"),
    (lambda c: c.adopt(regard.KVCache(1, 2, 8, 5, page_size=32)), ValueError, "other ... got 32"),
    (lambda c: c.adopt(regard.KVCache(1, 1, 8, 5, page_size=16)), ValueError, "other ... got 1"),
]


@each(KEPT)
def test_the_last_tokens_and_other_caches(wrong, error, parts):
    cache = regard.KVCache(2, 2, 8, 5, page_size=16)
    cache.append(*tokens(0, 2, 25))
    cache.append(*tokens(1, 2, 30))
    before = told(cache)
    check(lambda: wrong(cache), error, parts)
    assert told(cache) == before
    cache.reorder([0, 1])
    with pytest.raises(ValueError, match="keep must follow the append"):
        cache.keep(0, [30])


@pytest.mark.parametrize("kind", [np.float32, "float16", ">f4"])
def test_a_query_that_is_a_view_of_memory(kind):
    cache = regard.KVCache(1, 1, 4)
    cache.append(np.ones((1, 1, 4)), np.ones((1, 1, 4)))
    view = memoryview(np.ones((1, 4), kind))
    check(lambda: cache.attend(view), ValueError, "query ... (1, heads, q_len, 4) ... (1, 4)")


def test_an_append_that_no_array_can_hold():
    cache = regard.KVCache(1, 1, 1, dtype="f8")
    new = np.broadcast_to(np.float64(1), (1, 2**50, 1))
    check(lambda: cache.append(new, new), MemoryError, "no memory for ... pages")
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
    for cache in caches[1:]:
        assert_same_bits(cache.attend(QUERY), caches[0].attend(QUERY))


@pytest.mark.parametrize("page_size", [None, 16])
def test_a_closed_cache_says_so(page_size):
    with regard.KVCache(1, 1, 4, page_size=page_size) as cache:
        pass
    cache.close()
    assert repr(cache) == "KVCache(closed)"
    one = np.ones((1, 1, 4))
    for call in (
        lambda: cache.append(one, one),
        lambda: cache.attend(one),
        lambda: cache.truncate(0),
        lambda: len(cache),
        lambda: cache.nbytes,
        lambda: cache.keys,
        cache.fork,
        lambda: cache.save("cache"),
    ):
        check(call, ValueError, "closed")
