"""Keys and values for caches, and everything visible of a cache."""

import itertools

import numpy as np


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tokens(seed, batch, new, *, kv_heads=2, head_dim=8, value_dim=5, dtype=np.float64):
    """Return key and value of some new tokens."""
    shape = (batch, kv_heads, new)
    return normal(seed, *shape, head_dim, dtype=dtype), normal(
        seed + 10**6, *shape, value_dim, dtype=dtype
    )


def packed_tokens(seed, counts, **sizes):
    """Return keys, values and starts of some new tokens of each entry."""
    starts = [0, *itertools.accumulate(counts)]
    key, value = tokens(seed, 1, starts[-1], **sizes)
    return key[0].swapaxes(0, 1), value[0].swapaxes(0, 1), starts


def told(cache):
    """Return everything visible of a cache, as bytes."""
    parts = [cache.keys, cache.values, cache.lengths]
    if len(cache):
        batch, kv_heads, _, head_dim = parts[0].shape
        parts += cache.attend(normal(3, batch, kv_heads, 1, head_dim), return_lse=True)
    return [part.tobytes() for part in parts] + [repr(cache)]
