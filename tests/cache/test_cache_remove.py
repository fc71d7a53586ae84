"""Tokens removed from the middle, and prefixes found again.

That unrotated rows keep their bits is part of `test_cache_states.py`.
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import regard
from cache_tokens import normal, told
from drawn_problems import examples
from regard.positional import rotary, rotary_frequencies
from rope_cases import HALF, TRAINED, linear, llama3, longrope, of_dim, proportional, yarn

TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "float8_e4m3fn", "q4_1")
SIZES = {"num_kv_heads": 2, "head_dim": 64}
LONG = {TRAINED: 128, "factor": 4.0}
SCALINGS = {
    "none": None,
    "linear": linear(),
    "yarn": yarn(**LONG),
    "llama3": llama3(**LONG),
    "longrope": of_dim(longrope(**LONG), 64),
    "partial": HALF | {"rope_theta": 10000.0},
    "proportional": proportional(rope_theta=10000.0),
}


def rms(array):
    return np.sqrt(np.mean(np.square(array)))


@examples(60)
@given(
    dtype=st.sampled_from(TYPES),
    scaling=st.sampled_from(sorted(SCALINGS)),
    interleaved=st.booleans(),
    length=st.integers(40, 120),
    part=st.tuples(st.floats(0, 0.5), st.floats(0.5, 0.9)),
)
def test_rotary_keys_are_as_near_as_after_two_roundings(dtype, scaling, interleaved, length, part):
    """The keys of a cache of the remaining tokens at their new positions are rounded once."""
    start, stop = (int(length * share) for share in part)
    rope = {"scaling": SCALINGS[scaling], "interleaved": interleaved}
    frequencies, _ = rotary_frequencies(head_dim=64, scaling=rope["scaling"])
    key, value = normal(length, 2, 1, 2, length, 64)
    left = np.delete(key, range(start, stop), axis=2)
    given_type = "float64" if dtype == "float64" else "float32"
    cache, fresh, exact = (
        regard.KVCache(1, **SIZES, dtype=each, page_size=16) for each in (dtype, dtype, "float64")
    )
    cache.append(rotary(key.astype(given_type), **rope), value)
    fork, before = cache.fork(), told(cache)
    cache.remove(0, start, stop, inverse_frequencies=frequencies, interleaved=interleaved)
    assert told(fork) == before
    left_values = np.delete(value, range(start, stop), axis=2)
    fresh.append(rotary(left.astype(given_type), **rope), left_values)
    exact.append(rotary(left, **rope), left_values)
    assert np.array_equal(cache.values, fresh.values)
    query = rotary(normal(1, 1, 4, 1, 64), cache.lengths - 1, **rope)
    for found, rounded, true in (
        (cache.keys, fresh.keys, exact.keys),
        tuple(each.attend(query) for each in (cache, fresh, exact)),
    ):
        if dtype != "float64":
            found, rounded = found.astype(np.float64), rounded.astype(np.float64)
            assert rms(found - true) <= 2 * rms(rounded - true)
        np.testing.assert_allclose(found, true, atol=1e-13 if dtype == "float64" else 0.6)


def test_layers_are_rotated_by_their_own_frequencies():
    caches = regard.KVCaches(3, 1, **SIZES, page_size=16)
    slow, fast = (rotary_frequencies(64, base=base)[0] for base in (1e6, 1e4))
    rows = normal(0, 2, 1, 2, 50, 64)
    for cache in caches:
        cache.append(*rows)
    caches.remove(0, 3, 20, inverse_frequencies=[slow, None, fast])
    for cache, own in zip(caches, (slow, np.zeros(32), fast), strict=True):
        turned = rotary(rows[0, :, :, 20:].astype("f4"), [-17] * 30, inverse_frequencies=own)
        assert np.array_equal(cache.keys[:, :, 3:], turned)
        assert np.array_equal(cache.keys[:, :, :3], rows[0, :, :, :3].astype("f4"))
    with pytest.raises(ValueError, match="one for each of the 3 layers, got 2"):
        caches.remove(0, 1, 2, inverse_frequencies=[slow, fast])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_values_in_keys_are_not_rotated(dtype):
    cache = regard.KVCache(1, 1, 64, 32, dtype=dtype, value_from_key=True)
    cache.append(normal(0, 1, 1, 50, 64))
    before = cache.keys
    cache.remove(0, 10, 30, inverse_frequencies=rotary_frequencies(32)[0])
    turned = rotary(before[..., 30:, 32:], [-20] * 20, base=1e4)
    half = {"float32": 1e-6, "int8": abs(before).max() / 127}[dtype]
    np.testing.assert_allclose(cache.keys[..., 10:, 32:], turned, rtol=0, atol=half)
    np.testing.assert_allclose(cache.values[..., 10:, :], before[..., 30:, :32], rtol=0, atol=half)


def test_what_cannot_be_removed():
    cache = regard.KVCache(1, 1, 4, keep_last=20, keep_first=3, page_size=16)
    cache.append(*normal(0, 2, 1, 1, 100, 4))
    cache.append(*normal(1, 2, 1, 1, 1, 4))  # evicts the tokens from 16 to before 80
    before = told(cache)
    for wrong, says in (
        ((1, 0, 0), "entry must be"),
        ((0, 5, 4), "start must be at most 4, got 5"),
        ((0, 0, 102), "stop must be at most 101, got 102"),
        ((0, 99, 100), "the tokens before 80 of entry 0 have been evicted"),
        ((0, 3, 79), "start must be at least 100, or at most 16 with stop at least 80"),
    ):
        with pytest.raises(ValueError, match=says):
            cache.remove(*wrong)
    with pytest.raises(ValueError, match="inverse_frequencies must be 1-D"):
        cache.remove(0, 3, 90, inverse_frequencies=2.0)
    assert told(cache) == before
    cache.remove(0, 3, 90)
    assert cache.lengths == [14]
    full = regard.KVCaches(2, 1, 1, 4, page_size=16, max_bytes=7 * 16 * 2 * 2 * 4 * 4)
    for layer in full:
        layer.append(*normal(0, 2, 1, 1, 110, 4))
    before = [told(layer) for layer in full]
    with pytest.raises(MemoryError):
        full.remove(0, 3, 20, inverse_frequencies=[1.0, 0.1])
    assert [told(layer) for layer in full] == before


TOKENS = st.lists(st.integers(0, 2), max_size=40)


def rows_of(tokens):
    """Return rows of one head, each of which depends on all tokens before it."""
    numbers = [hash(tuple(tokens[: end + 1])) % 1009 for end in range(len(tokens))]
    rows = np.broadcast_to(np.array(numbers, np.float32)[:, None], (len(tokens), 4))
    return np.stack([rows, -rows])[:, None, None]


@examples(60)
@given(texts=st.lists(TOKENS, max_size=5), tokens=TOKENS, is_loaded=st.booleans())
def test_a_found_prefix_is_the_longest_and_has_its_rows(texts, tokens, is_loaded):
    server = regard.KVCache(0, 1, 4, page_size=16)
    index = regard.PrefixIndex(server)
    for text in texts:
        cache = regard.KVCache(0, 1, 4, page_size=16).fork([-1]) if is_loaded else index.find(text)
        cache.append(*rows_of(text)[:, :, :, int(cache.lengths[0]) :])
        index.add(text, cache)
        server.adopt(cache)
        server.truncate(np.maximum(server.lengths - 3, 0))  # and other tokens follow
        server.append(*np.zeros((2, server.batch, 1, 5, 4)))
    assert len(index) == len({tuple(text) for text in texts})
    shared = [
        next((i for i, (a, b) in enumerate(zip(text, tokens[:-1], strict=False)) if a != b),
             min(len(text), max(len(tokens) - 1, 0)))
        for text in texts
    ]  # fmt: skip
    found = index.find(tokens)
    assert found.lengths == [max(shared, default=0)]
    assert np.array_equal(found.keys, rows_of(tokens)[0, :, :, : len(found)])
    for _ in range(len(index)):
        index.evict()
    assert index.find(tokens).lengths == [0]


def test_an_index_evicts_what_was_used_longest_ago_and_finds_windows():
    caches = regard.KVCaches(2, 1, 1, 4, keep_last=[16, None], page_size=16)
    index = regard.PrefixIndex(caches)
    for text in (range(100), range(200, 240)):
        caches.reorder([-1])
        for _ in range(2):
            for cache in caches:
                cache.append(*normal(0, 2, 1, 1, len(text) // 2, 4))
        index.add(text, caches)
    assert index.find([*range(100), 7]).lengths == [100]
    assert index.find([*range(40), 7]).lengths == [0]  # its window has been evicted
    index.evict()
    assert index.find([*range(200, 240), 7]).lengths == [0]
    with pytest.raises(ValueError, match="tokens must be the 40 tokens of the entry, got 2"):
        index.add([1, 2], caches)
    with pytest.raises(TypeError, match="cache must be a KVCaches, got KVCache"):
        index.add([1, 2], regard.KVCache(1, 1, 4))
    index.evict()
    with pytest.raises(IndexError):
        index.evict()
