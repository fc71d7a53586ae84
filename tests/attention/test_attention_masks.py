"""Sparse masks give, to the last bit, the results of the same dense masks, in every call that
accepts a mask. tests/masks tests that the functions that make masks build the right ones."""

import dataclasses
import itertools

import numpy as np
import pytest

import regard
from element_types import each_in_one_type
from gradient_cases import drawn
from messages import says
from reference import arithmetic, assert_same_bits
from regard import masks

HEADS, KV_HEADS = 4, 2


def _dense(q_len, kv_len, seed=0, share=0.6):
    return np.random.default_rng(seed).random((q_len, kv_len)) < share


def _bands(q_len, kv_len, q_block, k_block):
    """Return a pattern of whole blocks, some of them neighbors."""
    rows, keys = np.arange(q_len) // q_block, np.arange(kv_len) // k_block
    return (rows[:, None] * 2 + keys) % 3 == 0


def _ids(length, count):
    return np.arange(length) * count // max(length, 1)


# Functions of the lengths that return a mask, by name. Some masks have heads, a batch, or one
# query.
MASKS = {
    "documents": lambda q, k: masks.documents(_ids(q, 5), _ids(k, 5)),
    "sliding": lambda q, k: masks.sliding(q, k, window=(30, 5), query_offset="end"),
    "sliding of heads": lambda q, k: masks.stack(
        [masks.sliding(q, k, window=(9 * h, h), query_offset=h) for h in range(HEADS)]
    ),
    "two ranges": lambda q, k: (
        masks.Ranges(0, 5, kv_len=k) | masks.sliding(q, k, window=(7, 0), query_offset="end")
    ),
    "far ranges": lambda q, k: (
        masks.Ranges(0, 20, kv_len=k) | masks.Ranges(np.full(q, max(k - 40, 0)), k)
    ),
    "dilated": lambda q, k: masks.sliding(q, k, window=(12, 12), dilation=3),
    "all but documents": lambda q, k: ~masks.documents(_ids(q, 3), _ids(k, 3)),
    "whole blocks": lambda q, k: masks.Blocks.from_dense(_bands(q, k, 128, 128)),
    "small blocks": lambda q, k: masks.Blocks.from_dense(_bands(q, k, 16, 24), block=(16, 24)),
    "odd blocks": lambda q, k: masks.Blocks.from_dense(_dense(q, k), block=(7, 13)),
    "mixed blocks": lambda q, k: masks.Blocks.from_dense(_bands(q, k, 50, 70), block=(64, 64)),
    "blocks of a batch": lambda q, k: masks.stack(
        [masks.Blocks.from_dense(_dense(q, k, n, 0.1), block=(32, 32)) for n in range(2)]
    )[:, None],
    "one query": lambda q, k: masks.Ranges(k // 3, k - 2, kv_len=k),
    "fewer keys": lambda q, k: masks.Ranges(0, np.arange(q) % max(k // 2, 1) + 1),
    "a view": lambda q, k: masks.sliding(q + 9, k + 11, window=(25, 30))[9:, 11:],
    "a view of blocks": lambda q, k: masks.Blocks.from_dense(
        _dense(q + 5, k + 3, 2), block=(24, 40)
    )[5:, 3:],
    "nothing": lambda q, k: masks.Ranges(np.zeros(q, int), 0, kv_len=k),
    "everything": lambda q, k: ~masks.Ranges(np.zeros(q, int), 0, kv_len=k),
}
LENGTHS = [(1, 300), (3, 40), (33, 97), (130, 200), (150, 1700)]
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "query_offset": "end"},
    "window": {"window": (60, 10), "query_offset": 40},
    "padding": {"left_padding": [0, 7], "key_lengths": [40, 35], "softcap": 2.0},
    "sinks": {"sinks": [0.5, -np.inf, 2, 1]},
    "biases": {"alibi_slopes": [0.1, 0.2, 0, 0.3], "distance_bias": np.sin(np.arange(31.0))},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 7},
    "float mask": {},
}
CASES = [
    (name, LENGTHS[number % len(LENGTHS)], list(OPTIONS)[number % len(OPTIONS)])
    for number, name in enumerate([*MASKS, *MASKS, *MASKS])
]
# After the first keys, whose results wait to be merged, comes a chunk whose first block is hidden.
CASES += [("far ranges", (q_len, 1700), "plain") for q_len in (2, 40)]


def to_dense(mask, kv_len):
    dense = mask.to_dense()
    missing = kv_len - dense.shape[-1]
    return np.pad(dense, [(0, 0)] * (dense.ndim - 1) + [(0, missing)])


@dataclasses.dataclass(frozen=True)
class Pair:
    """Arrays, options, and a mask in sparse and dense form."""

    arrays: tuple
    options: dict
    sparse: object
    dense: object

    def both(self, function, *arrays, **options):
        """Check that a function returns the same bits for both forms of the mask."""
        options = self.options | options
        for sparse, dense in itertools.zip_longest(
            *(_parts(function(*arrays, mask=m, **options)) for m in (self.sparse, self.dense))
        ):
            assert_same_bits(sparse, dense)


def _parts(results):
    return results if isinstance(results, tuple) else (results,)


def build(case, dtype):
    name, (q_len, kv_len), options = case
    shapes = (2, HEADS, q_len, 16), (2, KV_HEADS, kv_len, 16), (2, KV_HEADS, kv_len, 11)
    arrays = tuple(drawn(shape, dtype, seed) for seed, shape in enumerate(shapes))
    sparse = MASKS[name](q_len, kv_len)
    dense = to_dense(sparse, kv_len)
    if options == "float mask":
        bias = drawn((q_len, kv_len), arithmetic(dtype), 9)
        bias[bias > 1.5] = -np.inf
        sparse, dense = (sparse, bias), (dense, bias)
    return Pair(arrays, OPTIONS[options], sparse, dense)


@each_in_one_type(CASES, "storage")
def test_attention(case, storage, target):
    pair = build(case, storage)
    attend = regard.scaled_dot_product_attention
    pair.both(attend, *pair.arrays, return_lse=True)
    pair.both(attend, *pair.arrays, return_lse=True, return_weights=True, threads=2)


@each_in_one_type(CASES, "dtype")
def test_derivatives(case, dtype, target):
    pair = build(case, dtype)
    state = regard.scaled_dot_product_attention(
        *pair.arrays, mask=pair.dense, **pair.options, return_lse=True
    )
    grad = drawn(state[0].shape, dtype, 5)

    def backward(*arrays, **options):
        return regard.scaled_dot_product_attention_backward(*arrays, **options)[:3]

    pair.both(backward, grad, *pair.arrays, *state, threads=3)
    if isinstance(pair.sparse, tuple):

        def of_mask(*arrays, **options):
            asked = {"with_respect_to": ("mask",)}
            return regard.scaled_dot_product_attention_backward(*arrays, **options, **asked).mask

        pair.both(of_mask, grad, *pair.arrays, *state)
    tangents = [drawn(x.shape, dtype, 6) for x in pair.arrays]
    pair.both(regard.scaled_dot_product_attention_jvp, *pair.arrays, *tangents)


def test_gradients_where_a_chunk_has_several_pieces(dtype, target):
    """Rows are long, so a piece consists of a few blocks of keys. A query sees one piece, or two
    pieces that are apart."""
    arrays = [drawn((1, length, 128), dtype, length) for length in (70, 900, 900)]
    first = np.where(np.arange(70) < 40, 0, 430)
    sparse = masks.Ranges(first, first + 15, kv_len=900) | masks.Ranges(460, np.full(70, 470))
    pair = Pair((), {}, sparse, to_dense(sparse, 900))
    state = regard.scaled_dot_product_attention(*arrays, pair.dense, return_lse=True)

    def backward(**options):
        return regard.scaled_dot_product_attention_backward(
            drawn(state[0].shape, dtype, 5), *arrays, *state, **options
        )[:3]

    pair.both(backward)


@each_in_one_type([case for case in CASES if case[2] != "dropout"], "dtype")
def test_statistics(case, dtype, target):
    pair = build(case, dtype)
    query, key, _ = pair.arrays

    def summarize(*arrays, **options):
        asked = (*regard.AttentionSummary._fields[:9], "top_k")
        summary = regard.summarize_attention(*arrays, **options, statistics=asked, top_k=3)
        parts = [part for part in summary if isinstance(part, np.ndarray)]
        return *parts, *summary.top_k

    pair.both(summarize, query, key)
    for reduce in ("max", "mean"):
        pair.both(regard.attention_map, query, key, shape=(9, 11), reduce=reduce)


@pytest.mark.parametrize("form", ["ranges", "blocks", "heads"])
def test_ragged(form, dtype, target):
    """Rows are the packed queries; keys are counted from the first key of each sequence."""
    q_lengths, k_lengths = np.array([1, 49, 5, 130, 3]), np.array([97, 96, 300, 150, 1])
    starts = [np.concatenate([[0], np.cumsum(x)]) for x in (q_lengths, k_lengths)]
    total, longest = q_lengths.sum(), k_lengths.max()
    shapes = (total, HEADS, 16), (k_lengths.sum(), KV_HEADS, 16), (k_lengths.sum(), KV_HEADS, 8)
    query, key, value = (drawn(shape, dtype, seed) for seed, shape in enumerate(shapes))
    if form == "ranges":
        sparse = masks.Ranges(np.arange(total) % 20, np.arange(total) % 170 + 3, kv_len=longest)
    elif form == "blocks":
        sparse = masks.Blocks.from_dense(_dense(total, longest), block=(48, 32))
    else:
        sparse = masks.stack([masks.Ranges(h, np.arange(total) + 3) for h in range(HEADS)])
    dense = np.broadcast_to(to_dense(sparse, longest)[..., :longest], (HEADS, total, longest))
    dense = np.ascontiguousarray(dense.swapaxes(0, 1))
    if form == "heads":
        sparse = sparse[..., :longest]
    pair = Pair((query, key, value), {}, sparse, dense)
    attend = regard.scaled_dot_product_attention_ragged
    pair.both(attend, *pair.arrays, *starts, return_lse=True)
    output, lse = attend(*pair.arrays, *starts, dense, return_lse=True)

    def backward(*arrays, **options):
        return regard.scaled_dot_product_attention_ragged_backward(*arrays, **options)[:3]

    pair.both(backward, drawn(output.shape, dtype, 3), *pair.arrays, *starts, output, lse)


def test_gradients_of_queries_do_not_read_what_was_not_written(target):
    """A window and a mask leave a gap in each chunk: one piece is visible by position, the other by
    the mask. The distance table makes pieces short, and the first call fills the memory."""
    length, dtype = 1024, np.dtype(np.float32)
    query, key, value, grad = (drawn((4, length, 32), dtype, seed) for seed in range(4))
    sparse = masks.Ranges(0, 4, kv_len=length) | masks.documents(np.arange(length) // 320)
    options = {"window": (200, 0), "distance_bias": np.ones((4, 3), dtype)}
    asked = {"with_respect_to": ("query", "distance_bias")}
    attend = regard.scaled_dot_product_attention
    backward = regard.scaled_dot_product_attention_backward
    results = []
    for mask in (sparse, sparse.to_dense()):
        state = attend(query, key, value, mask, **options, return_lse=True)
        backward(1e6 * grad, query, key, value, *state, **options, **asked)
        results.append(backward(grad, query, key, value, *state, mask, **options, **asked))
    assert_same_bits(results[0].query, results[1].query)
    assert_same_bits(results[0].distance_bias, results[1].distance_bias)


def test_what_is_hidden_may_hold_anything(dtype, target):
    query, key, value = (drawn((3, length, 8), dtype) for length in (60, 200, 200))
    mask = masks.Blocks.from_dense(_bands(60, 200, 30, 40), block=(30, 40)) & masks.Ranges(0, 170)
    hidden = ~mask.to_dense().any(axis=0)
    hidden = np.pad(hidden, (0, 200 - len(hidden)), constant_values=True)
    clean = regard.scaled_dot_product_attention(query, key, value, mask)
    assert hidden.sum() >= 30
    key[:, hidden], value[:, hidden] = np.nan, np.inf
    assert_same_bits(regard.scaled_dot_product_attention(query, key, value, mask), clean)


def test_gradients_of_one_block_do_not_depend_on_the_others(dtype, target):
    """A row's bits depend only on the keys that it sees, wherever hidden blocks are between
    them."""
    query, key, value = (drawn((1, n, 8), dtype, n) for n in (40, 500, 500))
    mask = masks.Ranges(0, np.full(40, 96), kv_len=500)
    alone = regard.scaled_dot_product_attention(query, key[:, :96], value[:, :96])
    assert_same_bits(regard.scaled_dot_product_attention(query, key, value, mask), alone)


WRONG = {
    "queries": (lambda: masks.Ranges(0, np.full(6, 9)), "6 5"),
    "keys": (lambda: masks.Ranges(0, np.full(5, 12)), "12 11"),
    "heads": (lambda: masks.stack([masks.Ranges(0, np.full(5, 9))] * 3), "3 4"),
    "batch": (lambda: masks.stack([masks.Ranges(0, np.full(5, 9))] * 3)[:, None], "3 2"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_masks_of_other_shapes_are_refused(wrong):
    make, words = WRONG[wrong]
    arrays = [np.ones(s, np.float32) for s in ((2, 4, 5, 8), (2, 2, 11, 8), (2, 2, 11, 8))]
    with pytest.raises(ValueError, match=says("mask", "kv_len", *words.split())):
        regard.scaled_dot_product_attention(*arrays, make())


@pytest.mark.parametrize("pair", ["floats first", "two sparse", "three", "a list", "half"])
def test_pairs_of_other_kinds_are_refused(pair):
    sparse, bias = masks.Ranges(0, np.full(5, 9), kv_len=11), np.zeros((5, 11), np.float32)
    given = {
        "floats first": ((bias, sparse), "bool mask comes first"),
        "two sparse": ((sparse, sparse), "combine the two with &"),
        "three": ((sparse,) * 3, "regard.masks.stack"),
        "a list": ([sparse, sparse], "regard.masks.stack"),
        "half": ((sparse, None), "pair None"),
    }
    mask, words = given[pair]
    arrays = [np.ones(s, np.float32) for s in ((5, 8), (11, 8), (11, 8))]
    with pytest.raises(TypeError, match=says("mask", *words.split())):
        regard.scaled_dot_product_attention(*arrays, mask)


def test_hidden_blocks_take_no_time_and_no_memory():
    """Each of a million queries sees two of a million keys, in blocks that are far apart."""
    length = 1_000_000
    mask = masks.Ranges(np.arange(length), np.arange(length) + 2, kv_len=length)
    query = np.ones((length, 2), np.float32)
    value = np.arange(length, dtype=np.float32)[:, None]
    output = regard.scaled_dot_product_attention(query, query, value, mask)
    wanted = np.minimum(value + np.float32(0.5), value[-1])
    assert np.array_equal(output, wanted)
