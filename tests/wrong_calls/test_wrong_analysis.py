"""Wrong calls of streams, of statistics and maps of weights, and of what the latter return."""

import sys

import numpy as np
import pytest

import regard
from messages import check, each
from regard import KeyValueChunks, attention_map, rollout, select_keys, summarize_attention

QUERY, KEY, VALUE = np.zeros((2, 5, 8)), np.zeros((2, 30, 8)), np.zeros((2, 30, 3))
PAIR = (KEY, VALUE)
CUT = KeyValueChunks(KEY, VALUE, length=10)
FIRST, SECOND, THIRD = CUT
BOOLS = np.ones(30, bool)


class OnGpu:
    def __dlpack_device__(self):
        return 2, 0


def unread():
    """Fail on the first request: this iterable must not be read."""
    raise AssertionError("a chunk was requested")
    yield


def stream(chunks, mask=None, query=QUERY, **options):
    return regard.attend_stream(query, chunks, mask, **options)


BEFORE = [
    (lambda: stream(unread(), query=np.zeros(8)), ValueError, "query must have"),
    (lambda: stream(unread(), query=OnGpu()), TypeError, "query must be in the ... got an array"),
    (lambda: stream(unread(), key_lengths=[3, -1]), ValueError, "key_lengths must be ... got -1"),
    (lambda: stream(unread(), np.ones(30, int)), TypeError, "mask must be bool ... got int64"),
    (lambda: stream(unread(), OnGpu()), TypeError, "mask must be in the host's ... got an array"),
    (lambda: stream(unread(), key=KEY), TypeError, "no argument key ... pass"),
    (lambda: KeyValueChunks(KEY, VALUE[:, 1:]), ValueError, "key and value must ... got 30 and"),
    (lambda: KeyValueChunks(KEY[0, 0], VALUE), ValueError, "key must have at ... got shape (8,)"),
    (lambda: KeyValueChunks(KEY, VALUE, length=0), ValueError, "length must be at least 1, got 0"),
]
CHUNKS = [
    (None, TypeError, "chunks must be an iterable of ... got NoneType"),
    ([], ValueError, "chunks must contain at least one ... got none"),
    ("ab", TypeError, "chunk 0 must be a pair ... got str"),
    (PAIR, TypeError, "chunk 0 must be a pair ... got an array"),
    ([PAIR, (KEY,)], TypeError, "chunk 1 must be a pair ... got 1 elements"),
    ([(OnGpu(), VALUE)], TypeError, "chunk 0 ... got an array"),
    ([PAIR, (KEY, [[1], [1, 2]])], ValueError, "chunk 1"),
    ([(KEY[0, 0], VALUE)], ValueError, "chunk 0 ... got shape (8,)"),
    ([PAIR, (KEY, VALUE[:, 1:])], ValueError, "chunk 1 ... got 30 and"),
    ([PAIR, (KEY[..., 1:], VALUE)], ValueError, "chunk 1 ... got (2, 30"),
    ([PAIR, (KEY.astype("f4"), VALUE)], TypeError, "chunk 1 ... got float32"),
    ([(KEY[..., 1:], VALUE)], ValueError, "query and key must share head_dim ... got 8 and"),
    ([(np.zeros((3, 30, 8)), np.zeros((3, 30, 3)))], ValueError, "the heads of ... got 2 and"),
    ([FIRST, (*SECOND, np.zeros(10, int))], TypeError, "chunk 1 ... got int64"),
]
UNFIT = [
    ({"key_lengths": [3, 31]}, ValueError, "key_lengths must be from 0 to 30, got 31"),
    ({"query_offset": [3, 30]}, ValueError, "query_offset must be an integer ... got shape (2,)"),
    ({"mask": np.zeros(29)}, ValueError, "mask must have as many columns ... got shape (29,)"),
    ({"out": np.zeros((2, 5, 8))}, ValueError, "out must have shape (2, 5, 3), got (2, 5, 8)"),
]
X, LSE = np.zeros((2, 5, 4)), np.zeros((2, 5))
MASK = np.ones((2, 5, 5), bool)
L = np.ones((2, 3, 5, 4))
DENSE = summarize_attention(X, X)
PACKED = regard.summarize_attention_ragged(X.swapaxes(0, 1)[:4], X.swapaxes(0, 1), [0, 4], [0, 5])


def ragged(**changes):
    good = {"query_starts": [0, 2], "key_starts": [0, 2], "lse": LSE}
    return regard.summarize_attention_ragged(X, X, **good | changes)


ANALYSIS = [
    (lambda: summarize_attention(X, X, statistics=["entropi"]), ValueError, "statistics"),
    (lambda: summarize_attention(X, X, statistics=3), TypeError, "statistics must be ... got int"),
    (lambda: summarize_attention(X, X, statistics="induction"), TypeError, "statistics ... the"),
    (
        lambda: summarize_attention(X, X, statistics="induction", tokens=np.zeros(4)),
        TypeError,
        "tokens must be an array of ... got float64",
    ),
    (
        lambda: summarize_attention(X, X, statistics="induction", tokens=[1, 2]),
        ValueError,
        "tokens must broadcast to the batch ... got shape (2,)",
    ),
    (lambda: summarize_attention(X, X, statistics="top_k", top_k=0), ValueError, "top_k must be"),
    (lambda: summarize_attention(X, X, first_keys=-1), ValueError, "first_keys must be"),
    (lambda: summarize_attention(X, X, local_reach=1.5), TypeError, "local_reach ... got float"),
    (lambda: summarize_attention(X, X, lse=np.zeros((2, 4))), ValueError, "lse must"),
    (lambda: ragged(key_starts=[0]), ValueError, "key_starts must end with the length ... got 0"),
    (lambda: ragged(lse=LSE[:1]), ValueError, "lse must have the shape of ... got shape (1"),
    (lambda: attention_map(X, X, shape=5), TypeError, "shape must be a pair (height ... got 5"),
    (lambda: attention_map(X, X, shape=(0, 5)), ValueError, "shape must be at least 1, got 0"),
    (lambda: attention_map(X, X, reduce="median"), ValueError, "reduce must be ... got 'median'"),
    (lambda: attention_map(X, X, regions=[(slice("a"), slice(3))]), TypeError, "regions[0]"),
    (lambda: attention_map(X, X, regions=[(slice(3), slice(0, 5, 2))]), ValueError, "regions[0]"),
    (lambda: attention_map(X, X, lse=np.zeros(5)), ValueError, "lse must have ... got shape (5,)"),
    (lambda: select_keys(X[:0], X, LSE[:0], 2), ValueError, "query must have at least one head"),
    (lambda: select_keys(X, X, LSE, 0), ValueError, "k must be at least 1, got 0"),
    (lambda: select_keys(X, X, LSE, 2.5), TypeError, "k must be an int, got float"),
    (lambda: select_keys(X, X, LSE[..., :4], 2), ValueError, "weights must have ... got shape"),
    (lambda: select_keys(X, X, "ab", 2), TypeError, "weights must be"),
    (lambda: select_keys(X, X[..., :3], LSE, 2), ValueError, "query and key must share head_dim"),
    (
        lambda: select_keys(X, X, LSE, 2, np.zeros((5, 5))),
        TypeError,
        "mask must be bool ... got float64",
    ),
    (lambda: select_keys(X, X[:1], LSE, 2, MASK), ValueError, "mask must be the same ... got"),
    (lambda: select_keys(X, X, LSE, 2, scale=2), TypeError, "no argument scale ... multiply"),
    (lambda: rollout(L[0], L[0]), ValueError, "query must have at ... got shape ... pass query["),
    (lambda: rollout(L), TypeError, "key must be an array, got None"),
    (lambda: rollout([L], [L, L]), ValueError, "query and key must be lists ... got 1 and"),
    (lambda: rollout(L[:0], L[:0]), ValueError, "query must have at least one layer, got none"),
    (lambda: rollout(L[:, :0], L[:, :0]), ValueError, "query must have at least ... got none in"),
    (lambda: rollout(L, L[..., :4, :]), ValueError, "query and key must have the ... got 5 and"),
    (lambda: rollout([L, L[..., :3, :]], [L, L[..., :3, :]]), ValueError, "query must ... got (2"),
    (lambda: rollout(L, L, query_offset=1), ValueError, "query_offset must be 0 ... got an array"),
    (lambda: rollout(L, L, residual=1.5), ValueError, "residual must be from 0 to 1, got 1.5"),
    (lambda: rollout(L, L, queries=5), ValueError, "queries must be from -5 to 4, got 5"),
    (lambda: rollout(L, L, queries=slice(0.5)), TypeError, "queries must be a ... got slice(None"),
    (lambda: rollout(L, L, head_weights=[1, -1, 1]), ValueError, "head_weights must be"),
    (lambda: rollout(L, L, head_weights=[1, 1]), ValueError, "head_weights must ... got shapes"),
]
FRAMES = [
    (lambda: DENSE.to_frame("layer"), ValueError, "by must be 'head', 'query' or ... got 'layer'"),
    (lambda: PACKED.to_frame(), ValueError, "summary must have the same axes ... got entropy of"),
    (lambda: PACKED.to_frame("key", query_starts=[0, 4]), ValueError, "key_starts must be passed"),
    (
        lambda: summarize_attention(X[None], X[None]).to_frame(query_starts=[0, 1]),
        ValueError,
        "summary must have fields of one ... got entropy of",
    ),
    (lambda: regard.AttentionSummary().to_frame(), ValueError, "summary must have a ... got none"),
    (
        lambda: DENSE._replace(column_sums=None, column_means=None).to_frame("key"),
        ValueError,
        "summary must have a field for ... got entropy, max",
    ),
]


@each([*BEFORE, *ANALYSIS])
def test_calls(wrong, error, parts):
    check(wrong, error, parts)


@each(FRAMES)
def test_frames(wrong, error, parts):
    pytest.importorskip("pandas")
    check(wrong, error, parts)


@pytest.mark.parametrize("kind", ["known", "iterator"])
@each(CHUNKS)
def test_chunks(wrong, error, parts, kind):
    """The chunks come from a sequence or from an iterator, in which the chunks before the bad one
    have been computed."""
    chunks = iter(wrong) if kind == "iterator" and hasattr(wrong, "__iter__") else wrong
    check(lambda: stream(chunks), error, parts)


class Counted:
    """An array in a file that counts how often it is read."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.reads = array, array.shape, array.dtype, 0

    def __getitem__(self, index):
        self.reads += 1
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        self.reads += 1
        return np.asarray(self.array, dtype)


@each(UNFIT)
def test_nothing_is_read_of_arrays_that_do_not_fit(wrong, error, parts):
    key, value = Counted(KEY), Counted(VALUE)
    check(lambda: stream(KeyValueChunks(key, value, length=10), **wrong), error, parts)
    assert key.reads == value.reads == 0


def test_keys_that_end_early_or_late():
    long = (BOOLS, np.zeros(29))
    for chunks, options, parts in (
        (CUT, {"key_lengths": 31}, "key_lengths must be from 0 to 30 ... 3 chunks ... got 31"),
        ([FIRST, SECOND], {"left_padding": 21}, "left_padding must be from 0 to 20 ... got 21"),
        (CUT, {"mask": np.zeros((5, 31))}, "mask must have as many columns as there are keys, 30"),
        (CUT, {"mask": long}, "got shape (29,) ... chunk 2"),
        (CUT, {"mask": np.zeros((5, 29))}, "got shape (5, 29) ... chunk 2 holds keys 20 to 29"),
        ([FIRST, SECOND, (KEY, VALUE[..., 1:])], {"left_padding": 20}, "chunk 2: value"),
    ):
        check(lambda: stream(iter(list(chunks)), **options), ValueError, parts)  # noqa: B023
    twice = [FIRST, (*SECOND, np.ones(10, bool))]
    check(lambda: stream(twice, np.ones(20, bool)), TypeError, "chunk 1: mask must be None")


def test_a_bar_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    check(lambda: stream(unread(), progress=True), ImportError, "pip install tqdm")
