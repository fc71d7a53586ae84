"""Test masks of global tokens, neighborhoods, trees and random blocks against their definitions."""

import itertools

import numpy as np
import pytest

from reference import assert_same_bits
from regard import masks
from regard.masks import Blocks


@pytest.mark.parametrize("tokens", [0, 1, 3, [0], [4, 2, 2], [0, 3, 7, 9, 12, 15, 18], []])
@pytest.mark.parametrize("offset", [0, 2, -3, [0, 5, -20]])
def test_global_tokens(tokens, offset):
    chosen = np.arange(tokens) if isinstance(tokens, int) else np.array(tokens, int)
    for q_len, kv_len in [(20, 20), (5, 30), (1, 19), (200, 150), (0, 19)]:
        mask = masks.global_tokens(tokens, q_len, kv_len, query_offset=offset)
        first = np.array(offset)[..., None, None, None] if np.ndim(offset) else offset
        rows = np.isin(np.arange(q_len)[:, None] + first, chosen)
        assert_same_bits(mask.to_dense(), rows | np.isin(np.arange(kv_len), chosen))


def test_many_global_tokens_share_their_blocks():
    n = 20_000
    tokens = np.random.default_rng(0).choice(n, 40, replace=False)
    mask = masks.global_tokens(tokens, n)
    assert isinstance(mask, Blocks)
    assert mask.nnz == 2 * 40 * n - 40**2
    assert mask.nbytes < 40 * 40 * 2048 + 2 * 40 * 157 * 2 * 24


def neighbors(token, size, window, dilation, is_causal):
    """Return NATTEN's neighbors of a token on an axis, found in its dilation group."""
    group = range(token % dilation, size, dilation)
    at = group.index(token)
    if is_causal:
        return group[max(at - window + 1, 0) : at + 1]
    first = min(max(at - window // 2, 0), len(group) - window)
    return group[first : first + window]


def neighborhood(shape, window, dilation, is_causal):
    tokens = list(itertools.product(*map(range, shape)))
    seen = np.zeros((len(tokens), len(tokens)), bool)
    for i, token in enumerate(tokens):
        axes = zip(token, shape, window, dilation, is_causal, strict=True)
        for neighbor in itertools.product(*(neighbors(*axis) for axis in axes)):
            seen[i, tokens.index(neighbor)] = True
    return seen


@pytest.mark.parametrize(
    ("shape", "window", "dilation", "is_causal"),
    [
        ((9,), (1,), (9,), (False,)),
        ((9,), (9,), (1,), (False,)),
        ((11,), (2,), (4,), (False,)),
        ((11,), (3,), (3,), (True,)),
        ((6, 7), 3, 2, True),
        ((5, 6), (2, 6), (1, 1), (False, False)),
        ((6, 5), (2, 2), (3, 2), (False, False)),
        ((6, 5), (2, 3), (3, 1), (True, False)),
        ((1, 7), (1, 3), (1, 1), (False, False)),
        ((3, 4, 5), (3, 2, 3), (1, 1, 1), (False, False, False)),
        ((4, 3, 5), (2, 3, 2), (2, 1, 2), (False, False, True)),
    ],
)
def test_neighborhood(shape, window, dilation, is_causal):
    mask = masks.neighborhood(shape, window, dilation=dilation, is_causal=is_causal)
    options = (np.broadcast_to(each, len(shape)) for each in (window, dilation, is_causal))
    assert_same_bits(mask.to_dense(), neighborhood(shape, *options))


def lineage(parents, past):
    seen = np.zeros((len(parents), past + len(parents)), bool)
    seen[:, :past] = True
    for node in range(len(parents)):
        at = node
        while at >= 0:
            seen[node, past + at] = True
            at = parents[at]
    return seen


def drawn_parents(n, seed):
    random = np.random.default_rng(seed)
    back = random.geometric(0.5, n)
    return np.maximum(np.arange(n) - back, -1)


TREES = [[], [-1], [-1, -1, -1], [-1, 0, 1, 2], [-1, 0, 0, 1, 1, 2, 2], [-1, 0, -1, 2, 0, 2, 3]]
TREES += [drawn_parents(n, n) for n in (5, 17, 40)]


@pytest.mark.parametrize("past", [0, 1, 6])
@pytest.mark.parametrize("parents", TREES)
def test_tree(parents, past):
    mask = masks.tree(parents, past=past)
    assert_same_bits(mask.to_dense(), lineage(parents, past))


def test_trees_of_a_batch():
    parents = np.array([[-1, 0, 1, 1], [-1, -1, 0, 2], [-1, 0, 1, 2]])
    mask = masks.tree(parents, past=2)
    assert mask.shape == (3, 1, 4, 6)
    for each, wanted in zip(mask, parents, strict=True):
        assert_same_bits(each[0].to_dense(), lineage(wanted, 2))


def test_random_blocks():
    mask = masks.random_blocks(50, 90, blocks_per_row=3, block=(8, 16), heads=2, rng=0)
    in_blocks = np.pad(mask.to_dense(), ((0, 0), (0, 6), (0, 6))).reshape(2, 7, 8, 6, 16)
    assert (in_blocks.any(axis=(2, 4)).sum(axis=2) == 3).all()
    assert mask._sparse_rows().bits.size == 0
    assert (mask[0] != mask[1]).nnz > 0
    again = masks.random_blocks(50, 90, blocks_per_row=3, block=(8, 16), heads=2, rng=0)
    assert (again != mask).nnz == 0
    generator = np.random.default_rng(0)
    drawn = [masks.random_blocks(500, blocks_per_row=2, rng=generator) for _ in range(2)]
    assert (drawn[0] != drawn[1]).nnz > 0
    assert masks.random_blocks(9, blocks_per_row=0, rng=0).nnz == 0
    assert masks.random_blocks(9, blocks_per_row=1, rng=0).density == 1
