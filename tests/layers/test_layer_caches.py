"""Test layers with a cache, and with packed sequences, against whole sequences alone."""

from itertools import pairwise

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_problems import examples
from reference import assert_same_bits
from regard.layers._projections import Projections
from regard.layers._rotation import Rotation
from trained_layers import DIM, HEADS, D, multi_head, normal

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}


@st.composite
def causal_layers(draw):
    options = {
        "is_causal": True,
        "num_kv_heads": draw(st.sampled_from([1, 2, 4])),
        "window": draw(st.sampled_from([None, (3, 0)])),
        "rotary": draw(st.sampled_from([None, True, {"interleaved": True, "rotary_dim": 2}, YARN])),
        "alibi": draw(st.booleans()),
        "distance_bias": draw(st.sampled_from([None, 4])),
        "qk_norm": draw(st.sampled_from([None, "rms"])),
        "qkv_bias": draw(st.booleans()),
        "head_gates": draw(st.booleans()),
    }
    if options["rotary"] is YARN:
        options["rotary"] = {"scaling": YARN}
    return multi_head(draw(st.sampled_from([np.float32, np.float64])), **options)


def cache_for(layer, batch):
    parameters = layer.parameters()
    weight = parameters["W_key.weight"]
    return regard.KVCache(batch, len(weight) // DIM, DIM, dtype=weight.dtype)


def near(layer):
    return {"rtol": 0, "atol": 32 * np.finfo(layer.parameters()["W_key.weight"].dtype).eps}


@examples(60)
@hypothesis.given(st.data())
def test_step_by_step_is_the_whole(data):
    """Entries may have different lengths: the next rows follow the entry's own rows."""
    layer = data.draw(causal_layers())
    batch = data.draw(st.sampled_from([(), (1,), (3,)]))
    cuts = sorted(data.draw(st.lists(st.integers(0, 11), max_size=10)))
    x = normal((*batch, 11, D))
    gates = data.draw(st.sampled_from([None, np.arange(4.0), normal((*batch, HEADS), 5)]))
    cache = cache_for(layer, *batch or (1,))
    parts = np.split(x, cuts, axis=-2)
    steps = [layer(part, cache=cache, head_gates=gates) for part in parts]
    whole = layer(x, head_gates=gates)
    np.testing.assert_allclose(np.concatenate(steps, axis=-2), whole, **near(layer))
    assert cache.lengths.tolist() == [11] * len(cache.lengths)


def test_entries_of_different_lengths(dtype):
    """Rows beyond an entry's length are padding; the next rows follow the entry's own rows."""
    layer = multi_head(dtype, num_kv_heads=2, rotary=True, is_causal=True)
    lengths, x, after = np.array([5, 2, 4]), normal((3, 5, D)), normal((3, 1, D), 1)
    cache = cache_for(layer, 3)
    first = layer(x, cache=cache, key_lengths=lengths)
    assert cache.lengths.tolist() == [5, 2, 4]
    second = layer(after, cache=cache)
    for entry, length in enumerate(lengths):
        alone = layer(np.concatenate([x[entry, :length], after[entry]]))
        np.testing.assert_allclose(first[entry, :length], alone[:-1], **near(layer))
        np.testing.assert_allclose(second[entry], alone[-1:], **near(layer))


def test_a_memory_is_projected_once(dtype):
    layer = multi_head(dtype, d_key=20, qkv_bias=True)
    memory, x = normal((2, 9, 20)), normal((2, 4, D), 1)
    cache = cache_for(layer, 2)
    wanted, weights = layer(x, memory, key_lengths=[9, 6], return_weights=True)
    first = layer(x[:, :1], memory, cache=cache, key_lengths=[9, 6])
    others = [layer(x[:, i : i + 1], memory[:, :0], cache=cache) for i in range(1, 4)]
    np.testing.assert_allclose(np.concatenate([first, *others], axis=1), wanted, **near(layer))
    _, again = layer(x, memory[:, :0], cache=cache, return_weights=True)
    np.testing.assert_allclose(again, weights, **near(layer))
    assert cache.lengths.tolist() == [9, 6]


def test_dynamic_scaling_needs_a_length_beside_a_cache():
    def layer(**more):
        return multi_head(rotary={"scaling": DYNAMIC} | more, is_causal=True)

    x, cache = normal((7, D)), regard.KVCache(1, HEADS, DIM, dtype=np.float64)
    np.testing.assert_allclose(layer()(x[:6], cache=cache), layer()(x[:6]), **near(layer()))
    with pytest.raises(ValueError, match="beyond 6 positions"):
        layer()(x[6:], cache=cache)
    assert len(cache) == 6
    cache = regard.KVCache(1, HEADS, DIM, dtype=np.float64)
    steps = [layer(length=7)(part, cache=cache) for part in (x[:6], x[6:])]
    np.testing.assert_allclose(np.concatenate(steps), layer()(x), **near(layer()))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_of_a_rotation_are_those_of_rotary(interleaved, dtype):
    """Whether positions go forward or back, are far away, negative or scattered, the table that a
    layer keeps must not change a bit."""
    options = {"rotary_dim": 6, "interleaved": interleaved, "base": 100.0}
    rotation = Rotation(options, 8, dtype)
    random = np.random.default_rng(0)
    for place in range(140):  # one by one, beyond the ends of two tables
        given = random.standard_normal((2, 1, 8)).astype(dtype)
        wanted = regard.positional.rotary(given, [place], **options)
        rotation.turn((given, np.array([place])), cached=True)
        assert_same_bits(given, wanted)
    for start in (0, 3, 63, 64, 65, 1000, 999, 2, -5, 10**12):
        for places in (np.arange(start, start + 3), start + np.array([[0, 1, 2], [7, 8, 9]])):
            given = random.standard_normal((2, 4, 3, 8)).astype(dtype)
            wanted = regard.positional.rotary(given, places, **options)
            rotation.turn((given, places), cached=True)
            assert_same_bits(given, wanted)


STARTS = [0, 3, 3, 10, 11]


@examples(40)
@hypothesis.given(st.data())
def test_packed_sequences_have_the_bits_of_separate_calls(data):
    layer, x = data.draw(causal_layers()), normal((11, D))
    gates = data.draw(st.sampled_from([None, normal((4, HEADS), 5)]))
    mask = data.draw(st.sampled_from([None, normal((11, 1, 7), 2) < 0.5]))
    options = {"mask": mask, "head_gates": gates}
    output, weights = layer(x, starts=STARTS, return_weights=True, **options)
    assert weights.shape == (11, HEADS, 7)
    together, alone = cache_for(layer, 4), [cache_for(layer, 1) for _ in range(4)]
    for number, (start, end) in enumerate(pairwise(STARTS)):
        if start == end:
            continue
        own = {
            "mask": None if mask is None else mask[start:end, 0, : end - start],
            "head_gates": None if gates is None else gates[number],
        }
        wanted, shares = layer(x[start:end], return_weights=True, **own)
        assert_same_bits(output[start:end], wanted)
        shares = np.ascontiguousarray(shares.swapaxes(0, 1))
        assert_same_bits(weights[start:end, :, : end - start], shares)
    for starts in (STARTS, [0, 1, 2, 3, 4], [0, 0, 5, 5, 6], [0, 1, 1, 11, 11]):
        output = layer(x[: starts[-1]], cache=together, starts=starts, head_gates=gates)
        for number, (start, end) in enumerate(pairwise(starts)):
            if start < end:
                own = {} if gates is None else {"head_gates": gates[number]}
                wanted = layer(x[start:end], cache=alone[number], **own)
                assert_same_bits(output[start:end], wanted)
    assert together.lengths.tolist() == [len(cache) for cache in alone]


def interrupted(*_, **__):
    raise KeyboardInterrupt


LAST = normal((2, 4, D))[:, 3:]
FAILING = {
    "mask": ({"mask": np.ones((2, 2), bool)}, ValueError),
    "batch": ({"query": normal((3, 1, D))}, ValueError),
    "key_lengths": ({"key_lengths": [0, 2]}, ValueError),
    "gates": ({"head_gates": np.ones(3)}, ValueError),
    "packed sequences": ({"query": LAST[:, 0], "starts": [0, 2]}, ValueError),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_call_that_fails_leaves_the_cache(name):
    call, error = FAILING[name]
    layer = multi_head(is_causal=True, rotary=True)
    x = normal((2, 4, D))
    cache = cache_for(layer, 2)
    layer(x[:, :3], cache=cache)
    with pytest.raises(error, match=name if name in call else None):
        layer(**({"query": LAST, "cache": cache} | call))
    assert cache.lengths.tolist() == [3, 3]
    np.testing.assert_allclose(layer(LAST, cache=cache), layer(x)[:, 3:], **near(layer))


class InterruptedCache:
    """A cache that is interrupted after it has appended."""

    def __init__(self, cache, step):
        self.cache, self.step = cache, step

    def __getattr__(self, name):
        return interrupted if name == self.step == "attend" else getattr(self.cache, name)

    def append(self, *arguments, **options):
        self.cache.append(*arguments, **options)
        if self.step == "append":
            interrupted()


@pytest.mark.parametrize("step", ["append", "attend", "out"])
def test_a_call_that_is_interrupted_leaves_the_cache(step, monkeypatch):
    """The cache is restored after the append, even if only the output projection remains, with
    what it knows of its last append: queries after unequal lengths need their offset."""
    layer = multi_head(is_causal=True)
    cache = cache_for(layer, 2)
    layer(normal((2, 3, D)), cache=cache, key_lengths=[3, 1])
    if step == "out":
        monkeypatch.setattr(Projections, step, interrupted)
    for lengths in (None, [0, 1]):
        with pytest.raises(KeyboardInterrupt):
            layer(LAST, cache=InterruptedCache(cache, step), key_lengths=lengths)
        assert cache.lengths.tolist() == [3, 1]
        with pytest.raises(ValueError, match="query_offset must be given"):
            cache.attend(np.zeros((2, HEADS, 3, DIM)))
