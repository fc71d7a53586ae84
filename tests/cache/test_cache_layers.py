"""Test the caches of all layers: a step takes effect with the last layer."""

import os

import numpy as np
import pytest

import regard
from cache_kinds import loaded, make, new_cache
from cache_model import assert_alike
from cache_tokens import normal, packed_tokens, tokens
from inside_cache import assert_owners_are_right
from messages import says
from test_cache_interrupts import Moments, Stop, stop_at

LAYERS = 3


def test_a_step_that_does_not_go_on_is_refused():
    whole, model = new_cache(2, 2, 8, 5, layers=LAYERS, page_size=16)
    for each in (whole, model):
        each.append(*tokens(0, 2, 20))
    caches, (key, value) = whole.caches, tokens(1, 2, 2)
    caches[2].append(key, value)
    for rows in ((key, key), (key[:, :, :1], value[:, :, :1]), (key, value, [1, 2])):
        with pytest.raises(ValueError, match=r"value|layer 0"):
            caches[0].append(*rows)
    with pytest.raises(ValueError, match=says("layer 2", "layers 0, 1 have not", "rollback()")):
        caches[2].append(key, value)
    caches[0].append(key, value)
    for change in (
        caches.fork,
        lambda: caches.truncate(3),
        lambda: caches.reorder([0]),
        lambda: caches.drop(0),
        lambda: caches.keep(0, []),
        lambda: caches.save("/nowhere/cache"),
        lambda: caches[1].truncate(3),
    ):
        with pytest.raises(ValueError, match="layer 1 has not appended"):
            change()
    caches.rollback()
    assert_alike(whole, model)


def test_a_refused_append_writes_nowhere():
    """More tokens for an entry than the step has would be stored in other entries' pages."""
    caches = regard.KVCaches(2, 1, 2, 8, 5, page_size=16)
    for cache in caches:
        cache.append(*tokens(0, 1, 15))
    fork = caches.fork([-1, -1])
    for cache in fork:
        cache.append(*tokens(1, 2, 15))
    before = [cache.keys for cache in caches]
    fork[0].append(*tokens(2, 2, 3), lengths=[1, 3])
    key, value, starts = packed_tokens(3, [3, 1])
    for refused in (
        lambda: fork[1].append(*tokens(3, 2, 3)),
        lambda: fork[1].append(*tokens(3, 2, 3, dtype=np.float32)),
        lambda: fork[1].append(*tokens(3, 2, 3), lengths=[3, 1]),
        lambda: fork[1].append_ragged(key, value, starts),
        lambda: fork[1].append_ragged(key, value, np.array(starts)),
        lambda: fork[1].append(*tokens(3, 2, 0, dtype=np.float32)),
        lambda: fork[1].append(*tokens(3, 2, 3), lengths=[0, 0]),
    ):
        with pytest.raises(ValueError, match=says("layer 1 must append as many", "[1, 3]")):
            refused()
    assert all(np.array_equal(cache.keys, old) for cache, old in zip(caches, before, strict=True))
    fork[1].append_ragged(*packed_tokens(4, [1, 3]))
    assert fork.lengths.tolist() == [16, 18]


@pytest.mark.parametrize("kind", ["layers", pytest.param("layers file", marks=pytest.mark.slow)])
@pytest.mark.parametrize("new", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_step_that_was_interrupted_goes_on(kind, new, tmp_path):
    """The layer whose append was stopped may have its tokens or not; then the step is finished."""
    whole, _ = make(kind, tmp_path / "whole")
    with Moments(lambda count: None) as moments:
        whole.append(*tokens(5, 2, new))
    assert moments.count > 10
    for moment in range(0, moments.count, 7):
        path = tmp_path / f"{moment}"
        cache, _ = make(kind, path)
        layers, start = cache.caches, cache.lengths

        def go_on(layers=layers, start=start):
            for layer in (*range(1, len(layers)), 0):
                if np.array_equal(layers[layer].lengths, start):
                    key, value = tokens(5, 2, new)
                    layers[layer].append(key, value * 2.0**layer)

        with pytest.raises(Stop), stop_at(moment):
            go_on()
        go_on()
        assert np.array_equal(cache.keys, whole.keys)
        assert np.array_equal(cache.values, whole.values)
        assert_owners_are_right([cache])
        cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_does_not_write_to_its_parents_cache(tmp_path):
    cache = loaded(regard.KVCache(1, 2, 8, 5, page_size=16), tmp_path / "cache")
    cache.append(*tokens(0, 1, 3))
    fork = cache.fork()
    fork.append(*tokens(1, 1, 1))
    child = os.fork()
    if child == 0:
        try:
            fork.append(*np.split(np.full((1, 2, 1, 13), 99, np.float32), [8], axis=3))
        finally:
            os._exit(0)
    before = fork.keys
    fork.append(*tokens(2, 1, 1, dtype=np.float32))  # into the same place
    os.waitpid(child, 0)
    assert np.array_equal(fork.keys[:, :, :4], before)
    assert np.array_equal(fork.keys[:, :, 4:], tokens(2, 1, 1, dtype=np.float32)[0])


SHAPES = {  # of layers, as models of these families have them
    "gemma 3": {"num_kv_heads": 2, "head_dim": 8, "keep_last": [20] * 5 + [None]},
    "cohere 2": {
        "num_kv_heads": 1,
        "head_dim": 8,
        "keep_last": [33, 33, 33, None],
        "dtype": ["float32", "float16", "int8", "float64"],
    },
    "all differ": {
        "num_kv_heads": [1, 2, 4],
        "head_dim": [8, 32, 16],
        "value_dim": [5, 64, None],
        "keep_last": [None, 9, 9],
        "keep_first": [0, 2, 3],
        "dtype": ["float8_e4m3fn", "q4_1", "float32"],
        "key_scales": [[0.5], None, None],
    },
}


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize("name", SHAPES)
def test_layers_that_differ_have_the_bits_of_caches_of_their_own(name, page_size, tmp_path):
    options = SHAPES[name]
    layers = max(len(value) for value in options.values() if isinstance(value, list))
    caches = regard.KVCaches(layers, 2, page_size=page_size, **options)
    alone = []
    for layer in range(layers):
        own = {key: v[layer] if isinstance(v, list) else v for key, v in options.items()}
        alone.append(regard.KVCache(2, page_size=page_size, **own))
    for seed, counts in enumerate([[30, 9], [1, 1], [2, 40], *[[1, 1]] * 20]):
        for layer, cache in enumerate(alone):
            sizes = {"kv_heads": cache.num_kv_heads, "head_dim": cache.head_dim}
            new = tokens(seed + 100 * layer, 2, max(counts), value_dim=cache.value_dim, **sizes)
            for one in (caches[layer], cache):
                one.append(*new, counts)
        if seed == 10:
            caches = loaded(caches, tmp_path / "caches")
        for one, other in zip(caches, alone, strict=True):
            query = normal(0, 2, 4, 1, one.head_dim, dtype=np.float32)
            assert np.array_equal(one.attend(query), other.attend(query))
            assert np.array_equal(one.keys, other.keys)
            assert np.array_equal(one.values, other.values)
    assert_owners_are_right([caches])
