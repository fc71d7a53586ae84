"""Sparse masks for the calls that accept them, and the same masks as dense arrays."""

import numpy as np

from regard import masks


def dense(mask, kv_len):
    """Return the equivalent bool array: missing keys are hidden."""
    array = mask.to_dense()
    missing = kv_len - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])


def _drawn(shape, density, seed=0):
    """Draw blocks of 8 x 8, of which many are hidden, some are whole and the others are partial."""
    random = np.random.default_rng(seed)
    *planes, q_len, kv_len = shape
    of_blocks = random.random((*planes, -(-q_len // 8), -(-kv_len // 8)))
    of_pairs = np.repeat(np.repeat(of_blocks, 8, axis=-2), 8, axis=-1)[..., :q_len, :kv_len]
    shown = of_pairs < density / 2
    shown |= (of_pairs < density) & (random.random(shape) < 0.5)
    return shown


def _ranges(shape, seed=0):
    random = np.random.default_rng(seed)
    first = random.integers(0, shape[-1], shape[:-1])
    return masks.Ranges(first, first + random.integers(0, 12, shape[:-1]), kv_len=shape[-1])


def _view(q_len, kv_len):
    whole = masks.Blocks.from_dense(_drawn((q_len + 9, kv_len + 20), 0.4, 3), block=(8, 8))
    return whole[5 : 5 + q_len, 11 : 11 + kv_len]


def sparse_masks(batch, heads, q_len, kv_len):
    """Return sparse masks for a call by name, with every number of axes."""
    shape = (batch, heads, q_len, kv_len)
    return {
        "ranges": _ranges(shape[2:]),
        "ranges of heads": _ranges(shape[1:]),
        "ranges of entries": _ranges((batch, 1, q_len, kv_len)),
        "two ranges": _ranges(shape[2:]) | masks.Ranges(0, 2, kv_len=kv_len),
        "blocks": masks.Blocks.from_dense(_drawn(shape, 0.3), block=(8, 8)),
        "blocks of all heads": masks.Blocks.from_dense(_drawn(shape[2:], 0.3, 1), block=(8, 8)),
        "one query": masks.Ranges(kv_len // 4, kv_len // 2, kv_len=kv_len),
        "fewer keys": _ranges((q_len, max(kv_len - 13, 0)), 2),
        "a view": _view(q_len, kv_len),
        "nothing": masks.Ranges(0, np.zeros(q_len, int), kv_len=kv_len),
    }


# The names of the masks, for parametrization.
NAMES = tuple(sparse_masks(1, 1, 1, 16))
