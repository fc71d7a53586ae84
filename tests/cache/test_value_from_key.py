"""Test caches whose values are the first numbers of the keys."""

import numpy as np
import pytest

import fewer_bits
import regard
from cache_tokens import normal, told
from error_limits import assert_matches, expected
from reference import assert_same_bits

PLAIN = ("float32", "float64", "float16", "bfloat16")
SIZES = {"num_kv_heads": 1, "head_dim": 64, "value_dim": 32, "value_from_key": True}
HEADS = (4, 20)  # a decode, and the forward kernel


def filled(dtype, key, **options):
    """Return a cache with the keys, appended as a prompt, token by token, and packed."""
    cache = regard.KVCache(len(key), dtype=dtype, **SIZES | options)
    cache.append(key[:, :, :-3])
    for token in (-3, -2):
        cache.append(key[:, :, token : token + 1])
    cache.append_ragged(key[:, :, -1], None, range(len(key) + 1))
    return cache


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("heads", HEADS)
def test_bits_are_those_of_a_cache_of_both(dtype, heads, target):
    key = normal(0, 2, 1, 230, 64)
    other = regard.KVCache(2, 1, 64, 32, dtype=dtype, page_size=48)
    other.append(key, key[..., :32])
    cache = filled(dtype, key, page_size=48)
    assert_same_bits((cache.keys, cache.values), (other.keys, other.values))
    assert cache.nbytes < 0.7 * other.nbytes
    for queries in (1, 3):
        query = normal(1, 2, heads, queries, 64, dtype=np.float32)
        assert_same_bits(cache.attend(query, return_lse=True), other.attend(query, return_lse=True))


@pytest.mark.parametrize("dtype", fewer_bits.ALL)
@pytest.mark.parametrize("heads", HEADS)
def test_fewer_bits(dtype, heads, target):
    """Keys are not rotated, since values are read from them."""
    key, query = normal(0, 2, 1, 230, 64, dtype=np.float32), normal(1, 2, heads, 2, 64)
    cache = filled(dtype, key, page_size=48)
    held = fewer_bits.rounded(dtype, key)
    np.testing.assert_allclose(cache.keys, held, rtol=1e-6)
    np.testing.assert_array_equal(cache.values, cache.keys[..., :32])
    options = {"is_causal": True, "query_offset": 228}
    want = expected(query, held, held[..., :32], **options)
    output, lse = cache.attend(query, return_lse=True)
    if dtype != "q4_1":
        return assert_matches(want, output=output, lse=lse)
    # Queries are rounded by up to half a step, and weights change by twice as much as scores.
    steps = abs(query).max(-1, keepdims=True) / 32767
    moved = steps / 2 * abs(held).sum(-1).max() / 8
    assert (abs(lse - want.exact.lse) <= moved[..., 0] + want.limit.lse).all()
    assert (abs(output - want.exact.output) <= 2.1 * moved * abs(held).max()).all()


@pytest.mark.parametrize("dtype", ["float32", "int8", "float8_e4m3fn", "q4_1"])
def test_texts_change_and_are_saved(dtype, tmp_path):
    key = normal(0, 2, 1, 90, 64)
    cache = filled(dtype, key, page_size=16, keep_last=20, keep_first=2)
    cache.save(tmp_path / "cache")
    with regard.KVCache.load(tmp_path / "cache") as again:
        assert told(again) == told(cache)
        assert again.value_from_key
    fork = cache.fork()
    fork.append(key[:, :, :5], lengths=[5, 2])
    fork.truncate(90)
    assert told(fork) == told(cache)
    fork.reorder([1, -1])
    assert_same_bits(fork.keys[0], cache.keys[1])
    assert "value_from_key=True" in repr(cache)


def test_layers_may_differ():
    caches = regard.KVCaches(2, 1, 1, [64, 16], [32, 16], value_from_key=[True, False])
    caches[0].append(np.ones((1, 1, 3, 64)))
    caches[1].append(*np.ones((2, 1, 1, 3, 16)))
    assert caches[0].values.shape == (1, 1, 3, 32)
    assert caches.value_from_key == (True, False)


def test_scales_of_float8_are_those_of_keys():
    key = 1000 * normal(0, 1, 1, 20, 64, dtype=np.float32)
    cache = filled("float8_e4m3fn", key, key_scales=16)
    np.testing.assert_allclose(cache.values, fewer_bits.in_float8(key, 16)[..., :32], rtol=1e-6)


@pytest.mark.parametrize("heads", HEADS)
def test_pages_and_scales_at_the_same_address_may_have_other_strides(heads, target):
    """Values that begin where keys begin are not always in the keys."""
    pool = normal(0, 8, 16, 1, 64, dtype=np.float32)
    query, table = normal(2, 1, heads, 1, 64, dtype=np.float32), np.arange(4, dtype=np.int32)[None]

    def attend(key, value, **options):
        return regard.paged_attention(query, key, value, table, [60], **options)

    key, value = pool[::2], pool[:4, ..., :32]
    assert_same_bits(attend(key, value), attend(key, value.copy()))
    key, scales = (20 * pool[:4]).astype(np.int8), (normal(1, 8, 16, 1) ** 2 + 1).astype(np.float32)
    value, both = key[..., :32], {"key_scales": scales[::2], "value_scales": scales[:4]}
    apart = {name: each.copy() for name, each in both.items()}
    assert_same_bits(attend(key, value, **both), attend(key, value.copy(), **apart))
