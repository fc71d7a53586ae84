"""Test masks, explanations and offsets of packed tokens; the state machine tests their bits."""

import itertools

import numpy as np
import pytest

import regard
from cache_model import normal, packed_tokens, tokens
from reference import assert_same_bits

MASKS = {
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
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, keep_last, target):
    together = regard.KVCache(3, 2, 8, keep_last=keep_last, keep_first=3 if keep_last else 0)
    alone = [together.fork() for _ in range(3)]
    key, value, starts = packed_tokens(0, [40, 1, 7], value_dim=8)
    together.append_ragged(key, value, starts)
    query = normal(2, starts[-1], 4, 8, dtype=np.float32)
    mask = MASKS[name](np.random.default_rng(1), starts[-1], len(together))
    options = {} if keep_last is None else {"window": (9, None)}
    output = together.attend_ragged(query, starts, mask, **options)
    for b, (start, end) in enumerate(itertools.pairwise(starts)):
        alone[b].reorder([b])
        alone[b].append(*(x[start:end].swapaxes(0, 1) for x in (key, value)))
        own = part_of(mask, slice(start, end), end - start)
        want = alone[b].attend(query[start:end].swapaxes(0, 1), own, **options)
        assert_same_bits(np.ascontiguousarray(output[start:end].swapaxes(0, 1)), want)


def test_queries_of_earlier_tokens(target):
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


def test_what_is_explained(target):
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
