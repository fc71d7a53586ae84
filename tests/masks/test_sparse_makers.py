"""Test functions that make sparse masks against their definitions."""

import itertools

import numpy as np
import pytest

from reference import assert_same_bits
from regard import masks
from regard.masks import Blocks, Ranges

FAR = 10**30


def positions(q_len, query_offset):
    offset = np.asarray(query_offset, object)
    offset = offset[..., None, None, None] if offset.ndim else offset
    return np.arange(q_len).astype(object)[:, None] + offset


def slid(q_len, kv_len, window, dilation, query_offset):
    """Return a sliding window by definition, in Python's integers."""
    away = np.arange(kv_len).astype(object) - positions(q_len, query_offset)
    seen = away % dilation == 0
    if window[0] is not None:
        seen &= away >= -window[0] * dilation
    if window[1] is not None:
        seen &= away <= window[1] * dilation
    return seen.astype(bool)


@pytest.mark.parametrize("dilation", [1, 2, 3, 130])
@pytest.mark.parametrize("window", [(0, 0), (2, 0), (1, 3), (None, 0), (2, None), (None, None)])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 9), (9, 9), (130, 300), (0, 3)])
def test_sliding(q_len, kv_len, window, dilation):
    for offset in (0, -2, [3, -130], FAR, -FAR + 1):
        mask = masks.sliding(q_len, kv_len, window=window, dilation=dilation, query_offset=offset)
        wanted = slid(q_len, kv_len, window, dilation, offset)
        assert_same_bits(mask.to_dense(), wanted)
        assert mask.nnz == wanted.sum()
        assert isinstance(mask, Ranges) == (dilation == 1)


def test_sliding_is_window():
    for offset in ("end", [[0, 4], [2, 5]], np.zeros((2, 0), int)):
        for pair in ((3, 1), (None, 0), (10**30, 0)):
            mask = masks.sliding(5, 9, window=pair, query_offset=offset)
            assert_same_bits(mask.to_dense(), masks.window(5, 9, window=pair, query_offset=offset))
    assert masks.sliding(5, window=(0, 0)).shape == (5, 5)


IDS = {
    "sorted": [0, 0, 0, 2, 2, 5],
    "any order": [7, 7, -1, -1, -1, 3],
    "in two parts": [0, 0, 1, 1, 0, 0],
    "alternating": [0, 1, 0, 1, 0, 1],
    "one document": [4, 4, 4],
    "none": np.zeros(0, int),
    "all different": np.arange(9)[::-1],
    "far apart": np.array([2**64 - 1, 0, 2**63], np.uint64),
    "batch": [[0, 0, 1], [0, 1, 1]],
    "batches": np.arange(24).reshape(2, 3, 4) // 3,
}


@pytest.mark.parametrize("name", IDS)
def test_documents(name):
    ids = IDS[name]
    mask = masks.documents(ids)
    assert_same_bits(mask.to_dense(), masks.segments(ids))
    assert mask.nnz == masks.segments(ids).sum()


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ([1, 0, 2], [0, 0, 1, 1, 1]),
        ([[0, 1], [1, 0]], [0, 0, 1]),
        ([0, 1], [[0, 0, 1], [2, 2, 2]]),
        ([[[0, 1]], [[1, 0]]], [[0, 1, 1], [1, 1, 0]]),
        ([3], [3, 4]),
        ([3, 3], np.zeros(0, int)),
        (np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64)),
        (np.array([255, 5], np.uint8), np.array([-1, 5], np.int8)),
    ],
)
def test_documents_of_keys(queries, keys):
    assert_same_bits(masks.documents(queries, keys).to_dense(), masks.segments(queries, keys))


@pytest.mark.parametrize(("count", "kind"), [(2, Blocks), (2000, Ranges)])
def test_documents_in_many_parts_take_the_smaller_kind(count, kind):
    ids = np.random.default_rng(0).integers(0, count, (2, 500))
    mask = masks.documents(ids)
    assert isinstance(mask, kind)
    assert_same_bits(mask.to_dense(), masks.segments(ids))


@pytest.mark.parametrize("tokens", [0, 1, 3, [0], [4, 2, 2], [0, 3, 7, 9, 12, 15, 18], []])
@pytest.mark.parametrize("offset", [0, 2, -3, [0, 5, -20]])
def test_global_tokens(tokens, offset):
    chosen = np.arange(tokens) if isinstance(tokens, int) else np.array(tokens, int)
    for q_len, kv_len in [(20, 20), (5, 30), (1, 19), (200, 150), (0, 19)]:
        mask = masks.global_tokens(tokens, q_len, kv_len, query_offset=offset)
        rows = np.isin(positions(q_len, offset).astype(int), chosen)
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
    first = at - window // 2
    while first < 0:
        first += 1
    while first + window > len(group):
        first -= 1
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
        ((9,), (3,), (1,), (False,)),
        ((9,), (4,), (1,), (False,)),
        ((9,), (1,), (9,), (False,)),
        ((9,), (9,), (1,), (False,)),
        ((11,), (3,), (2,), (False,)),
        ((11,), (2,), (4,), (False,)),
        ((11,), (4,), (1,), (True,)),
        ((11,), (3,), (3,), (True,)),
        ((5, 6), (3, 3), (1, 1), (False, False)),
        ((5, 6), (2, 6), (1, 1), (False, False)),
        ((5, 6), (5, 6), (1, 1), (False, False)),
        ((5, 6), (3, 6), (1, 1), (True, False)),
        ((6, 5), (2, 2), (3, 2), (False, False)),
        ((6, 5), (2, 3), (3, 1), (True, False)),
        ((6, 5), (3, 2), (1, 2), (False, True)),
        ((1, 7), (1, 3), (1, 1), (False, False)),
        ((3, 4, 5), (3, 2, 3), (1, 1, 1), (False, False, False)),
        ((4, 3, 5), (2, 3, 2), (2, 1, 2), (False, False, True)),
        ((3, 3, 4), (2, 3, 4), (1, 1, 1), (True, True, False)),
    ],
)
def test_neighborhood(shape, window, dilation, is_causal):
    mask = masks.neighborhood(shape, window, dilation=dilation, is_causal=is_causal)
    wanted = neighborhood(shape, window, dilation, is_causal)
    assert_same_bits(mask.to_dense(), wanted)
    if not any(is_causal):
        assert (wanted.sum(axis=1) == np.prod(window)).all()


def test_one_number_holds_for_all_axes():
    mask = masks.neighborhood((6, 7), 3, dilation=2, is_causal=True)
    other = masks.neighborhood([6, 7], [3, 3], dilation=(2, 2), is_causal=(True, True))
    assert (mask != other).nnz == 0
    assert (masks.neighborhood(8, 3) != masks.neighborhood([8], [3])).nnz == 0


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
    mask = masks.random_blocks(50, 90, blocks_per_row=3, block=(8, 16), rng=0)
    dense = mask.to_dense()
    in_blocks = np.pad(dense, ((0, 6), (0, 6))).reshape(7, 8, 6, 16)
    assert (in_blocks.any(axis=(1, 3)).sum(axis=1) == 3).all()
    assert "partial" in repr(mask)
    assert mask._sparse_rows().bits.size == 0
    again = masks.random_blocks(50, 90, blocks_per_row=3, block=(8, 16), rng=0)
    assert (again != mask).nnz == 0
    generator = np.random.default_rng(0)
    drawn = [masks.random_blocks(500, blocks_per_row=2, rng=generator) for _ in range(2)]
    assert (drawn[0] != drawn[1]).nnz > 0


def test_random_blocks_of_heads():
    mask = masks.random_blocks(64, blocks_per_row=2, heads=3, block=(8, 8), rng=1)
    assert mask.shape == (3, 64, 64)
    assert mask.density == 2 / 8
    assert len({head.to_dense().tobytes() for head in mask}) == 3
    assert masks.random_blocks(9, blocks_per_row=0, rng=0).nnz == 0
    assert masks.random_blocks(9, blocks_per_row=1, rng=0).density == 1


def test_a_prefix_in_ranges():
    prefix = masks.prefix(7, prefix_lengths=[0, 3, 7])
    causal = masks.sliding(7, window=(None, 0))
    mask = causal | Ranges(0, np.array([0, 3, 7])[:, None, None])
    assert (prefix != mask).nnz == 0


SPARSE = {
    "causal": masks.sliding(6, window=(None, 0)),
    "causal, blocks": Blocks.from_dense(masks.causal(6), block=(4, 4)),
    "a window": masks.sliding(9, window=(2, 1)),
    "one row": Ranges(0, 5),
    "documents": masks.documents([0, 0, 1, 1]),
    "open to the right": masks.sliding(9, window=(2, None)),
    "no queries": Ranges(np.zeros(0, int), 3),
    "many heads": Blocks.from_dense(np.broadcast_to(masks.causal(6), (10**9, 64, 6, 6))),
}


@pytest.mark.parametrize("name", SPARSE)
def test_check_accepts(name):
    assert masks.check(SPARSE[name]) is SPARSE[name]


TRIANGLES = {
    "inverted": (np.triu(np.ones((6, 6), bool), 1), "looks inverted.*j > i "),
    "mirrored": (np.triu(np.ones((6, 6), bool)), "looks mirrored.*np.tril"),
    "more keys": (np.triu(np.ones((4, 9), bool), 1), "looks inverted"),
    "last aligned": (~masks.causal(4, 9, query_offset=5), "looks inverted.*j > i \\+ 5"),
    "with padding": (~(masks.causal(8) & masks.padding(5, 8)), "looks inverted"),
    "heads": (np.tile(np.triu(np.ones((5, 5), bool), 1), (2, 3, 1, 1)), "looks inverted"),
    "an empty row": (np.array([[True, False], [False, False]]), r"hides all keys from 1 of 2 rows"),
    "an empty row of a head": (
        np.array([[[True]], [[False]]]),
        r"hides all keys from 1 of 2 rows \(the first at \[1, 0\]\)",
    ),
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_check_refuses(name):
    dense, message = TRIANGLES[name]
    for mask in (Blocks.from_dense(dense, block=(2, 4)), dense):
        with pytest.raises(ValueError, match=message):
            masks.check(mask)


@pytest.mark.parametrize("seed", range(10))
def test_check_agrees_with_dense_masks(seed):
    random = np.random.default_rng(seed)
    dense = np.triu(np.ones((5, 7), bool), random.integers(-1, 4))
    dense |= random.random(7) < 0.3
    dense ^= random.random((5, 7)) < random.choice([0, 0.02])
    mask = Blocks.from_dense(dense, block=(2, 3))

    def message(of):
        try:
            masks.check(of)
        except ValueError as error:
            return str(error)
        return ""

    assert message(mask) == message(dense)
    assert masks.check(Ranges([0, 0], [0, 1]), allow_empty_rows=True) is not None
