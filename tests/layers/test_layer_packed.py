"""Packed sequences in layers have the results of separate calls, with a cache and without one."""

import itertools

import numpy as np
import pytest

import regard
from messages import says
from reference import assert_same_bits

KINDS = {
    "plain": {},
    "causal": {"is_causal": True},
    "rotary": {"is_causal": True, "rotary": True, "num_kv_heads": 2},
    "alibi": {"is_causal": True, "alibi": True},
    "window": {"window": (3, 0)},
    "biased": {"is_causal": True, "distance_bias": 4},
    "norms": {"is_causal": True, "qk_norm": 1e-6, "rotary": {"interleaved": True}},
    "float64": {"is_causal": True, "dtype": np.float64},
}
STARTS = [0, 3, 3, 10, 11]


def normal(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def layer_of(kind):
    return regard.MultiHeadAttention(32, 4, rng=0, **KINDS[kind])


def cache_of(layer, batch, kind):
    kv_heads = KINDS[kind].get("num_kv_heads", 4)
    return regard.KVCache(batch, kv_heads, 8, dtype=KINDS[kind].get("dtype", np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_side_by_side(kind, target):
    layer, x = layer_of(kind), normal(11, 32)
    output, weights = layer(x, starts=STARTS, return_weights=True)
    assert weights.shape == (11, 4, 7)
    for start, end in itertools.pairwise(STARTS):
        if start < end:
            assert_same_bits(output[start:end], layer(x[start:end]))
            want = layer(x[start:end], return_weights=True)[1].swapaxes(0, 1)
            assert_same_bits(weights[start:end, :, : end - start], np.ascontiguousarray(want))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_texts_in_a_cache(kind, target):
    layer, x = layer_of(kind), normal(40, 32)
    together = cache_of(layer, 4, kind)
    alone = [cache_of(layer, 1, kind) for _ in range(4)]
    for starts in (STARTS, [0, 1, 2, 3, 4], [0, 0, 20, 20, 21], [0, 1, 1, 40, 40]):
        output = layer(x[: starts[-1]], cache=together, starts=starts)
        for cache, (start, end) in zip(alone, itertools.pairwise(starts), strict=True):
            if start < end:
                assert_same_bits(output[start:end], layer(x[start:end], cache=cache))
    assert together.lengths.tolist() == [len(cache) for cache in alone]


def test_a_mask_of_packed_tokens(target):
    layer, x = layer_of("causal"), normal(11, 32)
    mask = np.random.default_rng(2).random((11, 1, 7)) < 0.7
    output = layer(x, mask=mask, starts=STARTS)
    for start, end in itertools.pairwise(STARTS):
        if start < end:
            own = mask[start:end, 0, : end - start]
            assert_same_bits(output[start:end], layer(x[start:end], mask=own))


REFUSED = {
    "key": ({"key": np.zeros((11, 32))}, says("key", "starts")),
    "key_lengths": ({"key_lengths": 3}, says("key_lengths", "starts")),
    "left_padding": ({"left_padding": [1, 0, 0, 0]}, says("left_padding", "starts")),
    "query_offset": ({"query_offset": 0}, says("query_offset", "starts")),
    "a total": ({"starts": [0, 3]}, says("starts", "query", "11", "3")),
    "an order": ({"starts": [0, 5, 3, 11]}, says("starts", "decrease")),
    "a beginning": ({"starts": [1, 11]}, says("starts", "0", "1")),
    "a matrix": ({"starts": [[0, 11]]}, says("starts", "(1, 2)")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    given, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        layer_of("causal")(normal(11, 32), **({"starts": STARTS} | given))


def test_what_else_is_refused():
    layer = layer_of("causal")
    with pytest.raises(ValueError, match=says("query", "tokens", "1 batch")):
        layer(normal(1, 11, 32), starts=STARTS)
    with pytest.raises(TypeError, match=says("starts", "integer")):
        layer(normal(11, 32), starts=[0, 2.5, 11])
    with pytest.raises(ValueError, match=says("starts", "train", "regard.masks.documents")):
        layer.train()(normal(11, 32), starts=STARTS)
    with pytest.raises(TypeError, match=says("cache", "KVCache", "list")):
        layer.eval()(normal(11, 32), starts=STARTS, cache=[])


@pytest.mark.parametrize("rotary", [None, True])
def test_a_call_that_fails_leaves_the_cache(rotary):
    layer = regard.MultiHeadAttention(32, 4, is_causal=True, rotary=rotary, rng=0)
    cache = regard.KVCache(4, 4, 8)
    layer(normal(11, 32), cache=cache, starts=STARTS)
    for given in ({"starts": [0, 11]}, {"mask": np.ones((3, 3), bool)}, {"softcap": -1.0}):
        with pytest.raises(ValueError, match=says(*given)):
            layer(normal(11, 32), cache=cache, **({"starts": STARTS} | given))
        assert cache.lengths.tolist() == [3, 0, 7, 1]
