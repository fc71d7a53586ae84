"""Test multi-head attention as a layer: the formula, inputs, caches and errors."""

import numpy as np
import pytest

import regard
from layer_oracle import ArrayCache, assert_is_formula
from reference import assert_same_bits
from regard.layers._projections import Projections

MultiHeadAttention = regard.MultiHeadAttention
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def with_norms(layer):
    """Draw norms and biases of distances, whose initial 1 and 0 would hide their use."""
    state = layer.state_dict()
    drawn = {
        name: a + 0.3 * normal(a.shape, ord(name[0]))
        for name, a in state.items()
        if "norm" in name or name == "distance_bias"
    }
    layer.load_state_dict(state | drawn)
    return layer


# Options of the layer, and the same options for the formula.
LAYERS = {
    "plain": ({}, {}),
    "biases": ({"qkv_bias": True, "out_bias": True}, {}),
    "out bias": ({"out_bias": True}, {}),
    "grouped": ({"num_kv_heads": 2, "qkv_bias": True}, {"kv_heads": 2}),
    "one key head": ({"num_kv_heads": 1}, {"kv_heads": 1}),
    "head_dim": ({"head_dim": 6, "num_kv_heads": 2}, {"kv_heads": 2}),
    "causal": ({"is_causal": True}, {"is_causal": True}),
    "window": ({"window": (2, 1)}, {"window": (2, 1)}),
    "causal window": (
        {"window": (3, None), "is_causal": True},
        {"window": (3, None), "is_causal": True},
    ),
    "rotary": ({"rotary": True}, {"rotary": {}}),
    "rotary options": (
        {"rotary": {"base": 500.0, "rotary_dim": 4, "interleaved": True}, "is_causal": True},
        {"rotary": {"base": 500.0, "rotary_dim": 4, "interleaved": True}, "is_causal": True},
    ),
    "rotary frequencies": (
        {"rotary": {"inverse_frequencies": [1.0, 0.3]}},
        {"rotary": {"inverse_frequencies": [1.0, 0.3]}},
    ),
    "yarn": ({"rotary": {"scaling": YARN}}, {"rotary": {"scaling": YARN}}),
    "alibi": (
        {"alibi": True, "is_causal": True},
        {"alibi_slopes": regard.positional.alibi_slopes(4), "is_causal": True},
    ),
    "distances": ({"distance_bias": 4}, {}),
    "few distances": ({"distance_bias": 1, "is_causal": True}, {"is_causal": True}),
    "grouped distances": (
        {"distance_bias": 30, "num_kv_heads": 2, "qk_norm": "rms"},
        {"kv_heads": 2},
    ),
    "norms": ({"qk_norm": "rms"}, {}),
    "norms, eps": ({"qk_norm": 0.5, "qkv_bias": True}, {"eps": 0.5}),
    "norms, plus one": ({"qk_norm": "rms_plus_one"}, {"norm_offset": 1}),
    "Qwen 3": (
        {"qk_norm": "rms", "rotary": True, "num_kv_heads": 2, "is_causal": True, "head_dim": 10},
        {"rotary": {}, "kv_heads": 2, "is_causal": True},
    ),
}


def build(name, dtype=np.float32, **more):
    options, meaning = LAYERS[name]
    layer = MultiHeadAttention(32, 4, rng=1, dtype=dtype, **options, **more)
    return with_norms(layer), {"heads": 4} | meaning


@pytest.mark.parametrize("shape", [(7, 32), (3, 7, 32), (2, 3, 5, 32)])
@pytest.mark.parametrize("name", LAYERS)
def test_self_attention_is_its_formula(name, shape, dtype, target):
    layer, meaning = build(name, dtype)
    x = normal(shape).astype(dtype)
    x.flags.writeable = False
    actual = layer(x, return_weights=True)
    assert_is_formula(actual, dtype, layer.state_dict(), x, **meaning)
    assert_same_bits(layer(x), actual[0])
    assert_same_bits(layer(x, x, x), actual[0])
    assert_same_bits(layer(x, x.copy(), x.copy()), actual[0])
    assert_same_bits(layer(x, threads=1), actual[0])
    assert_same_bits(np.stack([layer(entry) for entry in x]) if x.ndim > 2 else layer(x), actual[0])


@pytest.mark.parametrize(
    "sizes", [{}, {"d_key": 20}, {"d_value": 12}, {"d_key": 20, "d_value": 12}]
)
@pytest.mark.parametrize("name", LAYERS)
def test_cross_attention_is_its_formula(name, sizes, dtype):
    layer, meaning = build(name, dtype, **sizes)
    d_key = sizes.get("d_key", 32)
    query, key = normal((3, 5, 32)).astype(dtype), normal((3, 9, d_key), 1).astype(dtype)
    value = normal((3, 9, sizes.get("d_value", d_key)), 2).astype(dtype)
    state = layer.state_dict()
    actual = layer(query, key, value, return_weights=True)
    assert_is_formula(actual, dtype, state, query, key, value, **meaning)
    if "d_value" not in sizes:
        actual = layer(query, key, return_weights=True)
        assert_is_formula(actual, dtype, state, query, key, **meaning)
        assert_same_bits(layer(query, key, key.copy()), actual[0])


@pytest.mark.parametrize("name", ["plain", "Qwen 3", "alibi"])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": np.arange(9) < 6},
        {"mask": normal((3, 1, 5, 9))},
        {"mask": np.arange(9) != np.arange(4)[:, None, None]},
        {"key_lengths": 7},
        {"key_lengths": [9, 0, 4]},
        {"left_padding": 2},
        {"left_padding": [3, 0, 9], "key_lengths": [9, 8, 9]},
        {"query_offset": 3},
        {"query_offset": [4, 0, 2], "key_lengths": [9, 5, 7]},
        {"scale": 1.0},
        {"softcap": 0.5},
        {"sinks": normal(4)},
    ],
)
def test_options_are_passed_on(name, options, dtype):
    layer, meaning = build(name, dtype)
    query, key = normal((3, 5, 32)).astype(dtype), normal((3, 9, 32), 1).astype(dtype)
    actual = layer(query, key, **options, return_weights=True)
    assert_is_formula(actual, dtype, layer.state_dict(), query, key, **meaning, **options)


def test_rows_that_see_nothing_are_the_bias():
    layer = MultiHeadAttention(8, 2, qkv_bias=True, out_bias=True, rng=0)
    output, weights = layer(normal((3, 8)), mask=np.zeros((3, 3), bool), return_weights=True)
    assert_same_bits(output, np.tile(layer.state_dict()["out_proj.bias"], (3, 1)))
    assert not weights.any()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8)])
def test_empty_inputs(shape):
    layer = MultiHeadAttention(8, 2, rotary=True, qk_norm="rms", rng=0)
    output, weights = layer(np.zeros(shape), return_weights=True)
    assert output.shape == shape
    assert weights.shape == (*shape[:-2], 2, shape[-2], shape[-2])


@pytest.mark.parametrize("to", ["int8", "float16", "bfloat16", ">f4", "list"])
def test_inputs_are_converted(to):
    layer = MultiHeadAttention(8, 2, rng=0)
    x = np.arange(24.0).reshape(3, 8)
    if to == "bfloat16":
        to = pytest.importorskip("ml_dtypes").bfloat16
    assert_same_bits(layer(x.tolist() if to == "list" else x.astype(to)), layer(x))


def test_nan_and_infinity_are_results():
    layer = MultiHeadAttention(8, 2, qkv_bias=True, qk_norm="rms", is_causal=True, rng=0)
    x = normal((4, 8))
    clean = layer(x)
    x[2, 3], x[3, 1] = np.nan, np.inf
    output = layer(x)
    assert np.isnan(output[2:]).all()
    assert_same_bits(output[:2], clean[:2])


def test_dynamic_scaling_follows_the_longer_of_queries_and_keys(dtype):
    layer = MultiHeadAttention(16, 2, rotary={"scaling": DYNAMIC}, rng=0, dtype=dtype)
    query, key = normal((4, 16)).astype(dtype), normal((11, 16), 1).astype(dtype)
    for offset, length in ((0, 11), (30, 34)):
        frequencies, _ = regard.positional.rotary_frequencies(8, scaling=DYNAMIC, length=length)
        actual = layer(query, key, query_offset=offset, return_weights=True)
        rotary = {"inverse_frequencies": frequencies}
        options = {"heads": 2, "rotary": rotary, "query_offset": offset}
        assert_is_formula(actual, np.dtype(dtype), layer.state_dict(), query, key, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (False, True), (True, True)])
def test_parameters_are_drawn_as_four_linear_layers(biases, dtype):
    generator = regard.TorchGenerator(5)
    layer = MultiHeadAttention(
        12, 3, num_kv_heads=1, d_key=5, qkv_bias=biases[0], out_bias=biases[1],
        qk_norm="rms", rng=regard.TorchGenerator(5), dtype=dtype,
    )  # fmt: skip
    state = layer.state_dict()
    for name, d_in, d_out, bias in (
        ("W_query", 12, 12, biases[0]),
        ("W_key", 5, 4, biases[0]),
        ("W_value", 5, 4, biases[0]),
        ("out_proj", 12, 12, biases[1]),
    ):
        weight, drawn = generator.linear(d_in, d_out, bias, dtype)
        assert_same_bits(state.pop(f"{name}.weight"), weight)
        if bias:
            assert_same_bits(state.pop(f"{name}.bias"), drawn)
    assert list(state) == ["q_norm.weight", "k_norm.weight"]
    assert all(np.array_equal(norm, np.ones(4)) for norm in state.values())


CACHED = [
    "biases",
    "grouped",
    "causal",
    "causal window",
    "rotary options",
    "yarn",
    "alibi",
    "distances",
    "Qwen 3",
]


def cache_for(layer_options, batch, dtype):
    kv_heads = layer_options.get("num_kv_heads", 4)
    return ArrayCache(batch, kv_heads, layer_options.get("head_dim", 8), dtype)


@pytest.mark.parametrize("shape", [(11, 32), (1, 11, 32), (3, 11, 32)])
@pytest.mark.parametrize("steps", [[1] * 11, [11], [6, 1, 4], [0, 5, 6]])
@pytest.mark.parametrize("name", CACHED)
def test_step_by_step_is_the_whole(name, steps, shape, dtype):
    options = LAYERS[name][0] | {"is_causal": True}
    layer = with_norms(MultiHeadAttention(32, 4, rng=1, dtype=dtype, **options))
    x = normal(shape).astype(dtype)
    cache = cache_for(options, shape[0] if len(shape) == 3 else 1, dtype)
    parts = np.split(x, np.cumsum(steps)[:-1], axis=-2)
    steps = np.concatenate([layer(part, cache=cache) for part in parts], axis=-2)
    np.testing.assert_allclose(steps, layer(x), rtol=0, atol=32 * np.finfo(dtype).eps)
    assert cache.lengths.tolist() == [11] * len(cache.lengths)


def test_entries_of_different_lengths(dtype):
    """Rows beyond an entry's length are padding; the next rows follow the entry's own rows."""
    options = {"num_kv_heads": 2, "rotary": True, "is_causal": True}
    layer = MultiHeadAttention(32, 4, rng=1, dtype=dtype, **options)
    lengths, x = np.array([5, 2, 4]), normal((3, 5, 32)).astype(dtype)
    after = normal((3, 1, 32), 1).astype(dtype)
    cache = cache_for(options, 3, dtype)
    first = layer(x, cache=cache, key_lengths=lengths)
    assert cache.lengths.tolist() == [5, 2, 4]
    second = layer(after, cache=cache)
    for entry, length in enumerate(lengths):
        alone = layer(np.concatenate([x[entry, :length], after[entry]]))
        limit = 32 * np.finfo(dtype).eps
        np.testing.assert_allclose(first[entry, :length], alone[:-1], rtol=0, atol=limit)
        np.testing.assert_allclose(second[entry], alone[-1:], rtol=0, atol=limit)


def test_a_memory_is_projected_once(dtype):
    layer = MultiHeadAttention(32, 4, d_key=20, qkv_bias=True, rng=1, dtype=dtype)
    memory, x = normal((2, 9, 20)).astype(dtype), normal((2, 4, 32), 1).astype(dtype)
    cache = ArrayCache(2, 4, 8, dtype)
    wanted, weights = layer(x, memory, key_lengths=[9, 6], return_weights=True)
    first = layer(x[:, :1], memory, cache=cache, key_lengths=[9, 6])
    others = [layer(x[:, i : i + 1], memory[:, :0], cache=cache) for i in range(1, 4)]
    actual = np.concatenate([first, *others], axis=1)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=32 * np.finfo(dtype).eps)
    _, again = layer(x, memory[:, :0], cache=cache, return_weights=True)
    np.testing.assert_allclose(again, weights, rtol=0, atol=32 * np.finfo(dtype).eps)
    assert cache.lengths.tolist() == [9, 6]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ({"mask": np.ones((2, 2), bool)}, ValueError, None),
        ({"mask": np.ones(3, int)}, TypeError, None),
        ({"softcap": -1.0}, ValueError, None),
        ({"threads": 0}, ValueError, None),
        (
            {"query_offset": 2},
            ValueError,
            "query_offset must be left out with a cache, which determines it",
        ),
        (
            {"left_padding": [1, 0]},
            ValueError,
            "left_padding must be left out with a cache: pad on the right, and pass key_lengths",
        ),
        (
            {"query": normal((3, 1, 32))},
            ValueError,
            "query must have the batch axis of its cache, (2,), got batch axes (3,)",
        ),
        (
            {"query": normal((1, 32))},
            ValueError,
            "query must have the batch axis of its cache, (2,), got batch axes ()",
        ),
        (
            {"key": normal((2, 1, 32))},
            ValueError,
            "key must be left out with a cache in a layer that depends on positions, got key in "
            "a layer with is_causal, rotary",
        ),
    ],
)
def test_a_call_that_fails_leaves_the_cache(call, error, message):
    layer = MultiHeadAttention(32, 4, is_causal=True, rotary=True, rng=1)
    x = normal((2, 4, 32))
    cache = ArrayCache(2, 4, 8)
    layer(x[:, :3], cache=cache)
    with pytest.raises(error) as raised:
        layer(**({"query": x[:, 3:], "cache": cache} | call))
    assert message is None or str(raised.value) == message
    assert cache.lengths.tolist() == [3, 3]
    wanted = layer(x)[:, 3:]
    np.testing.assert_allclose(layer(x[:, 3:], cache=cache), wanted, rtol=0, atol=4e-6)


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["append", "attend", "joined"])
def test_a_call_that_is_interrupted_leaves_the_cache(step, monkeypatch):
    """The cache is restored after the append, even if only the output projection remains."""
    layer = MultiHeadAttention(32, 4, is_causal=True, rng=1)
    x = normal((2, 4, 32))
    cache = ArrayCache(2, 4, 8)
    layer(x[:, :3], cache=cache)
    append = cache.append

    def append_and_be_interrupted(*arguments, **options):
        append(*arguments, **options)
        interrupted()

    with monkeypatch.context() as patch:
        if step == "append":
            patch.setattr(cache, "append", append_and_be_interrupted)
        else:
            patch.setattr(cache if step == "attend" else Projections, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            layer(x[:, 3:], cache=cache)
    assert cache.lengths.tolist() == [3, 3]


def test_a_call_that_fails_leaves_what_the_cache_knows_of_its_last_append(monkeypatch):
    """Queries after an append of unequal lengths need their offset, which is not guessed."""
    layer = MultiHeadAttention(32, 4, is_causal=True, rng=1)
    cache = regard.KVCache(2, 4, 8)
    layer(normal((2, 3, 32)), cache=cache, key_lengths=[3, 1])
    query = np.zeros((2, 4, 3, 8), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(Projections, "joined", interrupted)
        for lengths in (None, [0, 1]):
            with pytest.raises(KeyboardInterrupt):
                layer(normal((2, 1, 32)), cache=cache, key_lengths=lengths)
            assert cache.lengths.tolist() == [3, 1]
            with pytest.raises(ValueError, match="query_offset must be given"):
                cache.attend(query)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([1, 2, 3], ValueError, r"broadcast to the batch axes \(2,\), got shape \(3,\)"),
        ([1, 3], ValueError, "key_lengths must be from 0 to 2, the new keys, got 3"),
        (-1, ValueError, "key_lengths must be from 0 to 2, the new keys, got -1"),
        (1.5, TypeError, "key_lengths must be an int or an integer array, got float64"),
    ],
)
def test_lengths_of_new_keys(lengths, error, message):
    cache = regard.KVCache(2, 4, 8)
    with pytest.raises(error, match=message):
        MultiHeadAttention(32, 4, rng=1)(normal((2, 2, 32)), cache=cache, key_lengths=lengths)
    assert cache.lengths.tolist() == [0, 0]


def test_dynamic_scaling_beside_a_cache():
    layer = MultiHeadAttention(16, 2, rotary={"scaling": DYNAMIC}, is_causal=True, rng=0)
    cache = ArrayCache(1, 2, 8)
    x = normal((7, 16))
    actual = layer(x[:6], cache=cache)
    np.testing.assert_allclose(actual, layer(x[:6]), rtol=0, atol=4e-6)
    with pytest.raises(ValueError, match=r"beyond 6 positions, .*; got 7 positions: pass"):
        layer(x[6:], cache=cache)
    assert len(cache) == 6
    held = MultiHeadAttention(
        16, 2, rotary={"scaling": DYNAMIC, "length": 7}, is_causal=True, rng=0
    )
    cache = ArrayCache(1, 2, 8)
    actual = np.concatenate([held(x[:6], cache=cache), held(x[6:], cache=cache)])
    np.testing.assert_allclose(actual, layer(x), rtol=0, atol=4e-6)


@pytest.mark.parametrize("options", [{}, {"rotary": True}, {"window": (1, 0), "alibi": True}])
@pytest.mark.parametrize(
    ("lengths", "offset"),
    [(None, 3), (6, 2), ([7, 5], [3, 1]), (np.array([2, 7], np.uint8), [-2, 3])],
)
def test_the_offset_end_aligns_the_last_query_with_the_last_key(options, lengths, offset):
    layer = MultiHeadAttention(16, 2, is_causal=True, rng=0, **options)
    query, key = normal((2, 4, 16)), normal((2, 7, 16), 1)
    assert_same_bits(
        layer(query, key, key_lengths=lengths, query_offset="end"),
        layer(query, key, key_lengths=lengths, query_offset=offset),
    )
