"""Masks over all keys of a stream and masks of its chunks give the same bits, and chunks that a
sparse mask hides are never read."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard.masks import Blocks, Ranges
from sparse_cases import NAMES, sparse_masks
from streams import Stored, normal, stream

BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 21, 90
QUERY = normal(BATCH, HEADS, Q_LEN, 8)
KEY, VALUE = normal(BATCH, 2, KV_LEN, 8, seed=1), normal(BATCH, 2, KV_LEN, 5, seed=2)
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
BIAS = normal(Q_LEN, KV_LEN, seed=3)


def chunks_of(length, mask=None):
    """Yield chunks of keys, each with its own part of the mask if there is one."""

    def part(array, keys):
        return array if array.shape[-1:] in ((), (1,)) else array[..., keys]

    for start in range(0, KV_LEN, length):
        keys = slice(start, start + length)
        chunk = KEY[..., keys, :], VALUE[..., keys, :]
        if mask is None:
            yield chunk
        elif isinstance(mask, tuple):
            yield *chunk, tuple(part(each, keys) for each in mask)
        else:
            yield *chunk, part(mask, keys)


DENSE = [(), (1,), (KV_LEN,), (Q_LEN, 1), (Q_LEN, KV_LEN), (2, 1, 1, KV_LEN)]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", [*DENSE, *NAMES], ids=str)
def test_masks_over_all_keys_and_of_chunks(kind, with_bias):
    mask = MASKS[kind] if isinstance(kind, str) else np.asarray(normal(*kind, seed=5) < 1)
    mask = (mask, BIAS) if with_bias else mask
    wanted = stream(QUERY, chunks_of(32), mask, return_lse=True)
    assert_same_bits(stream(QUERY, list(chunks_of(32, mask)), return_lse=True), wanted)
    assert_same_bits(stream(QUERY, chunks_of(32, mask), return_lse=True), wanted)
    lazy = regard.KeyValueChunks(Stored(KEY), Stored(VALUE), length=32)
    assert_same_bits(stream(QUERY, lazy, mask, return_lse=True), wanted)


BLOCKS = Blocks([0, 3], [2, 3, 7], shape=(Q_LEN, KV_LEN), block=(32, 10))
READ = [
    (Ranges(0, 1) | Ranges(80, 81, kv_len=KV_LEN), {}, [0, 80]),
    (Ranges([*[5] * 20, 70], [*[6] * 20, 71], kv_len=KV_LEN), {}, [0, 70]),
    (BLOCKS, {}, [20, 30, 70]),
    (BLOCKS, {"key_lengths": 40}, [20, 30]),
    (BLOCKS[:, 25:], {}, [0, 10, 40, 50]),
    ((BLOCKS, BIAS), {"is_causal": True, "query_offset": 10}, [20, 30]),
    (regard.masks.stack([Ranges([n], [n + 1], kv_len=9) for n in (1, 3, 3, 1)]), {}, [0]),
    (Ranges(0, np.zeros(Q_LEN, int), kv_len=KV_LEN), {}, []),
]


@pytest.mark.parametrize(("mask", "options", "wanted"), READ)
def test_chunks_that_no_query_sees_are_not_read(mask, options, wanted):
    key, value = Stored(KEY), Stored(VALUE)
    stream(QUERY, regard.KeyValueChunks(key, value, length=10), mask, **options)
    assert key.reads == value.reads == wanted
