"""Sparse masks that Hypothesis draws, each with the same mask as a bool array."""

import numpy as np
from hypothesis import strategies as st

from regard import masks


def _documents(draw, q, k):
    ids = np.arange(max(q, k)) // draw(st.integers(1, 40))
    return masks.documents(ids[:q], ids[:k]), np.equal.outer(ids[:q], ids[:k])


def _sliding(draw, q, k):
    sides = [draw(st.none() | st.integers(0, 60)) for _ in range(2)]
    dilation, offset = draw(st.integers(1, 3)), draw(st.integers(-20, 60))
    ahead = np.arange(k) - np.arange(q)[:, None] - offset
    left, right = (9999 if side is None else side * dilation for side in sides)
    seen = (ahead >= -left) & (ahead <= right) & (ahead % dilation == 0)
    options = {"dilation": dilation, "query_offset": offset}
    return masks.sliding(q, k, window=tuple(sides), **options), seen


def _ranges(draw, q, k):
    random = np.random.default_rng(draw(st.integers(0, 99)))
    first, length = random.integers(0, k + 1, q), random.integers(0, k // 2 + 1, q)
    if draw(st.booleans()):  # as for a view or a causal mask, many rows begin together
        first[:] = first[0]
    j = np.arange(k)
    seen = (j >= first[:, None]) & (j < (first + length)[:, None])
    return masks.Ranges(first, first + length, kv_len=k), seen


def _selected(draw, q, k):
    random = np.random.default_rng(draw(st.integers(0, 99)))
    block, count = draw(st.sampled_from([1, 1, 3, 64])), draw(st.sampled_from([0, 1, 7, 40]))
    listed = random.integers(-1, -(-k // block), (q, count))
    seen = (listed[..., None] == np.arange(k) // block).any(axis=-2)
    return masks.Selected(listed, block=block, kv_len=k), seen


def _blocks(draw, q, k):
    size = draw(st.sampled_from([(16, 16), (7, 13), (128, 128), (64, 24)]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    shown = random.random((-(-q // size[0]), -(-k // size[1]))) < 0.4
    indptr = np.cumsum([0, *shown.sum(axis=1)])
    i, j = np.ogrid[:q, :k]
    options = {"shape": (q, k), "block": size}
    return masks.Blocks(indptr, shown.nonzero()[1], **options), shown[i // size[0], j // size[1]]


def _partial_blocks(draw, q, k):
    size = draw(st.sampled_from([(16, 16), (7, 13), (32, 32)]))
    share = draw(st.sampled_from([0.1, 0.6]))
    dense = np.random.default_rng(draw(st.integers(0, 99))).random((q, k)) < share
    return masks.Blocks.from_dense(dense, block=size), dense


def _global_tokens(draw, q, k):
    tokens = draw(st.lists(st.integers(0, k - 1), max_size=6))
    asked = np.isin(np.arange(max(q, k)), tokens)
    return masks.global_tokens(np.array(tokens, int), q, k), asked[:q, None] | asked[:k]


def _function(draw, q, k):
    step, limit = draw(st.integers(1, 50)), draw(st.integers(0, 90))

    def rule(i, j):
        return (i // step == j // step) | (i + j < limit)

    return masks.from_function(rule, q, k, block=(32, 32)), rule(*np.ogrid[:q, :k])


MAKERS = [
    _documents,
    _sliding,
    _ranges,
    _selected,
    _blocks,
    _partial_blocks,
    _global_tokens,
    _function,
]


def drawn_mask(draw, q, k, depth=3):
    """Return a mask composed of others, and the same mask as a bool array."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(MAKERS))(draw, q, k)
    way = draw(st.sampled_from(["&", "|", "^", "~", "slice", "dense", "fewer keys"]))
    if way == "slice":
        rows, keys = draw(st.integers(0, 20)), draw(st.integers(0, 20))
        mask, dense = drawn_mask(draw, q + rows, k + keys, depth - 1)
        return mask[rows:, keys:], dense[rows:, keys:]
    if way == "fewer keys" and k > 1:  # a mask of unknown width: the other keys are hidden
        last = draw(st.integers(1, k))
        seen = np.tile(np.arange(k) < last, (q, 1))
        return masks.Ranges(0, np.full(q, last), kv_len=k), seen
    mask, dense = drawn_mask(draw, q, k, depth - 1)
    if way == "~":
        return ~mask, ~dense
    other, other_dense = drawn_mask(draw, q, k, depth - 1)
    if way == "dense":
        return mask & other_dense, dense & other_dense
    both_of = {"|": lambda a, b: a | b, "^": lambda a, b: a ^ b}.get(way, lambda a, b: a & b)
    return both_of(mask, other), both_of(dense, other_dense)
