"""Test `select_keys` against the index of all keys, in integers, which are summed exactly."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

import regard
from drawn_problems import TARGETS, examples, on_target, problems
from reference import solve
from regard._arguments.options import PatternOptions, names_of


def best_keys(index, k):
    """Return the keys of the `k` largest numbers, the first of equal ones, and then -1."""
    missing = [(0, 0)] * (index.ndim - 1) + [(0, max(k - index.shape[-1], 0))]
    index = np.pad(index.astype(float), missing, constant_values=-np.inf)
    order = np.argsort(np.where(np.isnan(index), np.inf, -index), axis=-1, kind="stable")[..., :k]
    order[~(np.take_along_axis(index, order, -1) > -np.inf)] = index.shape[-1]
    order.sort(axis=-1)
    return np.where(order == index.shape[-1], -1, order)


def index_of(query, key, weights):
    """Return the index of all keys for each key head."""
    *batch, heads, q_len, _ = query.shape
    *_, kv_heads, kv_len, _ = key.shape
    key = np.repeat(key, heads // kv_heads, axis=-3)
    terms = weights[..., None] * np.maximum(query @ key.swapaxes(-1, -2), 0)
    return terms.reshape(*batch, kv_heads, heads // kv_heads, q_len, kv_len).sum(-3)


@hypothesis.given(problem=problems(dropout=False, mixed=False), target=TARGETS, data=st.data())
@examples(150)
def test_the_keys_with_the_largest_index(problem, target, data):
    options = {
        name: problem.options[name] for name in names_of(PatternOptions) if name in problem.options
    }
    seen = solve(*problem.arrays, **options, precision=np.float64)
    visible = seen.shaped(seen.seen)[..., :1, :, :]
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    *batch, _, q_len, kv_len = visible.shape
    kv_heads = problem.key.shape[-3] if problem.key.ndim > 2 else 1
    heads = kv_heads * data.draw(st.sampled_from([1, 2, 3, 8, 12, 16, 20, 33, 64]))
    dim = data.draw(st.sampled_from([1, 5, 16, 33]))
    shapes = (*batch, heads, q_len, dim), (*batch, kv_heads, kv_len, dim), (*batch, heads, q_len)
    query, key, weights = (random.integers(-3, 4, shape).astype(float) for shape in shapes)
    mask = None
    if data.draw(st.booleans()):
        mask = random.random((q_len, kv_len)) < data.draw(st.sampled_from([0.1, 0.5, 0.95]))
        visible = visible & mask
        if data.draw(st.booleans()):
            mask = regard.masks.Blocks.from_dense(mask, block=(32, 32))
    k = data.draw(st.sampled_from([1, 2, 7, 64, 1000]))
    index = np.where(visible, index_of(query, key, weights), -np.inf)
    stored = problem.query.dtype
    with on_target(target):
        selected = regard.select_keys(
            query.astype(stored), key.astype(stored), weights, k, mask, **options
        )
    np.testing.assert_array_equal(selected, best_keys(index, k))


def test_threads_that_share_the_keys_select_the_same():
    random = np.random.default_rng(0)
    query, weights = random.integers(-3, 4, (2, 8, 3, 4)), random.integers(-1, 3, (8, 3))
    key = random.integers(-2, 3, (1, 20_000, 4))
    wanted = best_keys(index_of(query, key[None], weights[None]), 3000)
    for threads in (1, 2, 5):
        selected = regard.select_keys(query, key, weights, 3000, threads=threads)
        np.testing.assert_array_equal(selected, wanted)


def test_without_heads_and_without_keys():
    query, key = np.ones((3, 4)), np.ones((5, 4))
    selected = regard.select_keys(query, key, np.ones(3), 2, query_offset=1, is_causal=True)
    assert selected.tolist() == [[0, 1]] * 3
    assert selected.dtype == np.int64
    assert regard.select_keys(query, key[:0], 1.0, 2).tolist() == [[-1, -1]] * 3
    assert regard.select_keys(query[:0], key, 1.0, 2).shape == (0, 2)


def test_keys_whose_index_is_no_number_are_not_selected():
    key = np.array([[np.nan], [1], [np.inf], [-1], [2]])
    query = np.ones((2, 1, 1))
    assert regard.select_keys(query, key[None], [[1], [1]], 4).tolist() == [[[1, 2, 3, 4]]]
    assert regard.select_keys(query, key[None], [[1], [-2]], 4).tolist() == [[[1, 3, 4, -1]]]
