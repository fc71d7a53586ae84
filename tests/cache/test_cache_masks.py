"""Sparse masks of caches give the bits of dense masks, in pages, after eviction, and for trees."""

import numpy as np
import pytest

import regard
from cache_model import normal, tokens
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


@pytest.mark.parametrize(
    ("name", "left"), [(name, (3, 33, 60)[i % 3]) for i, name in enumerate(NAMES)]
)
def test_windows_that_hide_some_of_the_first_tokens(name, left):
    cache, plain = filled(CACHES["first tokens"]), filled({})
    kv_len = len(cache)
    mask = sparse_masks(2, 4, 7, kv_len)[name]
    query = normal(1, 2, 4, 7, 8, dtype=np.float32)
    positions, keys = np.arange(kv_len - 7, kv_len)[:, None], np.arange(kv_len)
    shown = ((keys > positions - 30) | (keys < 5)) & (keys >= positions - left)
    wanted = plain.attend(query, shown & dense(mask, kv_len))
    for each in (mask, dense(mask, kv_len)):
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


@pytest.mark.parametrize("kind", ["whole", "pages", "first tokens"])
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
        if kind == "first tokens":  # a node's position determines what the window keeps
            continue
        wanted = branch.attend(query[:, :, node : node + 1])
        np.testing.assert_allclose(output[:, :, node : node + 1], wanted, rtol=0, atol=2e-6)
    shown = dense(regard.masks.tree(parents, past=past), len(cache))
    assert_same_bits(output, cache.attend(query, shown))


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
