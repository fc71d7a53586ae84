"""Masks of caches: sparse ones give the bits of dense ones, in pages, after eviction, for trees and
for packed tokens."""

import itertools

import numpy as np
import pytest

import regard
from cache_tokens import normal, packed_tokens, tokens
from element_types import type_named
from reference import assert_same_bits
from sparse_cases import NAMES, dense, sparse_masks

CACHES = {
    "whole": {},
    "pages": {"page_size": 16},
    "int8": {"dtype": "int8", "page_size": 32},
    "window": {"keep_last": 40, "page_size": 16},
    "first tokens": {"keep_last": 30, "keep_first": 5, "page_size": 16},
    "float64": {"dtype": "float64", "page_size": 16},
}


def filled(sizes, lengths=None):
    """Return a cache of two entries, which may have evicted some tokens."""
    cache = regard.KVCache(2, 2, 8, 5, **sizes)
    for step, new in enumerate((50, 1, 30, 1, 1, 7)):
        cache.append(*tokens(step, 2, new), lengths)
    return cache


@pytest.mark.parametrize(
    ("name", "kind", "q_len"),
    [
        (name, list(CACHES)[(i + j) % len(CACHES)], q_len)
        for i, name in enumerate(NAMES)
        for j, q_len in enumerate((1, 7))
    ],
)
def test_the_bits_of_the_dense_mask(name, kind, q_len, target):
    cache = filled(CACHES[kind])
    query = normal(1, 2, 4, q_len, 8, dtype=np.float64 if kind == "float64" else np.float32)
    mask, bias = sparse_masks(2, 4, q_len, len(cache))[name], normal(2, q_len, len(cache))
    shown = dense(mask, len(cache))
    for options in ({}, {"sinks": normal(3, 4), "softcap": 3.0}, {"window": (2, 0)}):
        for sparse, whole in ((mask, shown), ((mask, bias), (shown, bias))):
            actual = cache.attend(query, sparse, return_lse=True, **options)
            assert_same_bits(actual, cache.attend(query, whole, return_lse=True, **options))
            computed = cache.explain(query, sparse, **options).scores_computed
            assert computed <= cache.explain(query, whole, **options).scores_computed
    actual = cache.attend(query, mask, return_weights=True)
    assert_same_bits(actual, cache.attend(query, shown, return_weights=True))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_selected_keys_in_every_storage_type(stored, target):
    """Decodes copy them side by side, in their own type if their columns fill vectors."""
    random = np.random.default_rng(0)
    for sizes, q_len, heads in (((64, 32), 1, 16), ((40, 24), 2, 2), ((64, 64), 9, 4)):
        cache = regard.KVCache(1, 2, *sizes, dtype=type_named(stored), page_size=16)
        cache.append(*(normal(seed, 1, 2, 500, size) for seed, size in enumerate(sizes)))
        query = normal(3, 1, heads, q_len, sizes[0], dtype=np.float32)
        mask = regard.masks.Selected(random.integers(-1, 500, (heads, q_len, 10)), kv_len=500)
        options = {"alibi_slopes": random.random(heads), "return_lse": True}
        wanted = cache.attend(query, mask.to_dense(), **options)
        assert_same_bits(cache.attend(query, mask, **options), wanted)
        computed = cache.explain(query, mask).scores_computed
        assert computed < cache.explain(query, mask.to_dense()).scores_computed


@pytest.mark.parametrize(
    ("name", "left"), [(name, (3, 33, 86)[i % 3]) for i, name in enumerate(NAMES)]
)
def test_windows_that_hide_some_of_the_first_tokens(name, left):
    cache, plain = filled(CACHES["first tokens"]), filled({})
    kv_len = len(cache)
    mask = sparse_masks(2, 4, 7, kv_len)[name]
    query = normal(1, 2, 4, 7, 8, dtype=np.float32)
    positions, keys = np.arange(kv_len - 7, kv_len)[:, None], np.arange(kv_len)
    shown = ((keys > positions - 30) | (keys < 5)) & (keys >= positions - left)
    for each in (mask, dense(mask, kv_len), None):
        wanted = plain.attend(query, shown & (True if each is None else dense(mask, kv_len)))
        actual = cache.attend(query, each, window=(left, None))
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=2e-6)


def test_queries_that_see_different_first_tokens(target):
    """The mask determines this, in separate blocks of keys."""
    cache = regard.KVCache(1, 2, 8, 5, keep_last=40, keep_first=300, page_size=16)
    for step in range(8):
        cache.append(*tokens(step, 1, 100))
    kv_len = len(cache)
    mask = regard.masks.Ranges(np.where(np.arange(40) < 20, 0, 250), kv_len, kv_len=kv_len)
    query = normal(1, 1, 4, 40, 8, dtype=np.float32)
    wanted = cache.attend(query, mask.to_dense(), return_lse=True)
    assert_same_bits(cache.attend(query, mask, return_lse=True), wanted)


@pytest.mark.parametrize("kind", ["whole", "pages"])
def test_the_nodes_of_a_tree_see_their_ancestors(kind):
    """Each node has the output of its own branch, appended by itself."""
    parents = [-1, 0, 0, 1, 1, 2, 5, -1]
    cache = filled(CACHES[kind])
    past, (key, value) = len(cache), tokens(99, 2, len(parents))
    query = normal(1, 2, 4, len(parents), 8, dtype=np.float32)
    branches = [cache.fork() for _ in parents]
    cache.append(key, value)
    output = cache.attend(query, regard.masks.tree(parents, past=past))
    for node, branch in enumerate(branches):
        lineage, at = [], node
        while at >= 0:
            lineage.insert(0, at)
            at = parents[at]
        branch.append(key[:, :, lineage], value[:, :, lineage])
        wanted = branch.attend(query[:, :, node : node + 1])
        np.testing.assert_allclose(output[:, :, node : node + 1], wanted, rtol=0, atol=2e-6)


def add_distances(scores, queries, keys, stride, positions, first_key, head, entry, user_data):
    for k in range(keys):
        for q in range(queries):
            scores[k * stride + q] += 0.05 * (positions[q] - first_key - k) * (head - 1) + entry


@pytest.mark.parametrize("kind", ["whole", "pages", "first tokens"])
@pytest.mark.parametrize("q_len", [1, 3])
def test_a_score_function_gets_the_positions_in_the_cache(kind, q_len):
    function = regard.ScoreFunction(regard.ScoreFunction.c_type()(add_distances))
    cache = filled(CACHES[kind])
    query = normal(1, 2, 4, q_len, 8, dtype=np.float32)
    kv_len = len(cache)
    distance = np.arange(kv_len - q_len, kv_len)[:, None] - np.arange(kv_len)
    bias = 0.05 * distance * (np.arange(4)[:, None, None] - 1)
    actual = cache.attend(query, score_function=function)
    np.testing.assert_allclose(actual, cache.attend(query, bias), rtol=0, atol=3e-6)
    told = cache.explain(query, score_function=function)
    assert told.tiles_computed == cache.explain(query).tiles_computed


PACKED = {
    "bool": lambda random, n, keys: random.random((n, 4, keys)) < 0.7,
    "bool of keys": lambda random, n, keys: random.random(keys) < 0.7,
    "bias": lambda random, n, keys: random.standard_normal((n, 1, keys)).astype("f4"),
    "sparse": lambda random, n, keys: regard.masks.Blocks.from_dense(
        random.random((n, keys)) < 0.7, block=(16, 16)
    ),
    "pair": lambda random, n, keys: (
        random.random((n, 1, keys)) < 0.7,
        random.standard_normal((1, 4, keys)).astype("f4"),
    ),
}


def part_of(mask, rows, kv_len):
    """Return the rows of a mask (tokens, heads, keys) that belong to one entry, (heads, rows,
    keys)."""
    if isinstance(mask, tuple):
        return tuple(part_of(part, rows, kv_len) for part in mask)
    if isinstance(mask, regard.masks.SparseMask):
        mask = mask.to_dense()[:, None]
    whole = mask if mask.ndim == 3 else mask[None, None]
    own = whole[rows] if whole.shape[0] > 1 else whole
    return own.swapaxes(0, 1)[..., :kv_len]


@pytest.mark.parametrize("keep_last", [None, 20])
@pytest.mark.parametrize("name", PACKED)
def test_masks_of_packed_tokens(name, keep_last, target):
    together = regard.KVCache(3, 2, 8, keep_last=keep_last, keep_first=3 if keep_last else 0)
    alone = [together.fork() for _ in range(3)]
    key, value, starts = packed_tokens(0, [40, 1, 7], value_dim=8)
    together.append_ragged(key, value, starts)
    query = normal(2, starts[-1], 4, 8, dtype=np.float32)
    mask = PACKED[name](np.random.default_rng(1), starts[-1], len(together))
    options = {} if keep_last is None else {"window": (9, None)}
    output = together.attend_ragged(query, starts, mask, **options)
    for b, (start, end) in enumerate(itertools.pairwise(starts)):
        alone[b].reorder([b])
        alone[b].append(*(x[start:end].swapaxes(0, 1) for x in (key, value)))
        own = part_of(mask, slice(start, end), end - start)
        want = alone[b].attend(query[start:end].swapaxes(0, 1), own, **options)
        assert_same_bits(np.ascontiguousarray(output[start:end].swapaxes(0, 1)), want)


def test_packed_queries_of_earlier_tokens(target):
    """The positions of the first queries may be given. Without them, the queries belong to the last
    tokens."""
    cache = regard.KVCache(2, 1, 8, 5)
    cache.append(*tokens(0, 2, 50, kv_heads=1))
    query = normal(1, 7, 2, 8, dtype=np.float32)
    late = cache.attend_ragged(query, [0, 3, 7])
    given = cache.attend_ragged(query, [0, 3, 7], query_offset=[47, 46])
    assert_same_bits(late, given)
    early = cache.attend_ragged(query, [0, 3, 7], query_offset=[5, 0])
    want = cache.attend(query[:3].swapaxes(0, 1)[None].repeat(2, 0), query_offset=[5, 9])
    assert_same_bits(np.ascontiguousarray(early[:3].swapaxes(0, 1)), want[0])


def test_an_explanation_of_packed_tokens(target):
    """The cost of a step is the cost of its parts, and no padding is computed."""
    counts, lengths = [64, 1, 1, 1, 0], [500, 300, 700, 20, 40]
    cache = regard.KVCache(5, 2, 64)
    cache.append_ragged(*packed_tokens(0, lengths, head_dim=64, value_dim=64))
    query = np.zeros((sum(counts), 4, 64), np.float32)
    whole = cache.explain(query, starts=[0, *itertools.accumulate(counts)])
    parts = []
    for b, count in enumerate(counts):
        one = cache.fork([b])
        parts.append(one.explain(np.zeros((4, count, 64), np.float32)))
    for name in ("flops", "scores", "tiles_computed"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    assert (whole.kernel, parts[1].kernel) == ("forward", "decode")
    assert "3 sequences with few query rows: kernel decode" in whole.notes
    assert whole.bytes == query.nbytes + sum(lengths) * 2 * 128 * 4 + query.nbytes
