"""Test self-attention as a layer: its formula and its gradients, its draws and its states."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from dense_layers import self_attention
from drawn_problems import examples
from reference import assert_same_bits, derivatives
from trained_layers import assert_near, assert_same_arrays, normal

INITS = ["linear", "uniform", "normal"]
NAMES = ("query", "key", "value")
# Shapes of x, and of masks, which have no axis of heads.
SHAPES = {
    (6, 3): [(6, 6), (1, 6), (6,), ()],
    (4, 6, 3): [(6, 6), (4, 6, 6), (4, 1, 6), (1, 6, 6)],
    (6, 6, 3): [(6, 6, 6)],
    (2, 4, 6, 3): [(4, 6, 6), (2, 1, 1, 6)],
    (1, 2, 3, 5, 3): [(2, 1, 5, 5)],
    (1, 3): [(1, 1)],
}


@examples(80)
@hypothesis.given(st.data())
def test_outputs_weights_and_gradients_are_those_of_the_formula(data):
    shape = data.draw(st.sampled_from(list(SHAPES)))
    dtype = np.dtype(data.draw(st.sampled_from([np.float32, np.float64])))
    init = data.draw(st.sampled_from(INITS))
    has_bias = init == "linear" and data.draw(st.booleans())
    dropout = data.draw(st.sampled_from([0, 0, 0.3]))
    is_causal = data.draw(st.booleans())
    options = {"init": init, "qkv_bias": has_bias, "dropout": dropout}
    layer = regard.SelfAttention(3, 5, rng=1, dtype=dtype, **options)
    x, mask = normal(shape, 0, dtype), None
    x.flags.writeable = False
    if data.draw(st.booleans()):
        mask_shape = data.draw(st.sampled_from(SHAPES[shape]))
        mask = np.asarray(np.random.default_rng(3).random(mask_shape) < 0.6)
        if data.draw(st.booleans()):
            mask = np.where(mask, normal(mask_shape, 4), -np.inf)

    state = {name: array.astype(float) for name, array in layer.parameters().items()}
    wide = x.astype(float)
    exact = self_attention(state, wide, mask, is_causal=is_causal)
    output, weights = layer(x, mask, is_causal=is_causal, return_weights=True)
    assert output.dtype == weights.dtype == dtype
    for actual, wanted in zip((output, weights), exact, strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=300 * np.finfo(dtype).eps)
    assert not weights[exact[1] == 0].any()
    listed = None if mask is None else mask.tolist()
    assert_same_bits(layer(x, listed, is_causal=is_causal), output)

    call = {"is_causal": is_causal} | ({"dropout_seed": 5} if dropout else {})
    meaning = call | ({"dropout_p": dropout} if dropout else {})

    def written_out(arrays):
        parameters = {name: arrays[name] for name in state}
        return self_attention(parameters, arrays["x"], mask, **meaning)[0]

    layer.train()
    trained = layer(x, mask, **call)
    if not dropout:
        assert_same_bits(trained, output)
    assert_near(trained, written_out(state | {"x": wide}), dtype)
    grad = normal(output.shape, 9)
    wanted = derivatives(written_out, grad, state | {"x": wide}, most=6)
    assert_near(layer.backward(grad), wanted["x"], dtype)
    assert list(layer.grads) == list(layer.state_dict())
    for name, gradient in layer.grads.items():
        assert gradient.flags.c_contiguous
        assert_near(gradient, wanted[name], dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_are_query_key_value_each_weight_before_its_bias(dtype):
    generator = regard.TorchGenerator(5)
    layer = regard.SelfAttention(3, 2, qkv_bias=True, rng=regard.TorchGenerator(5), dtype=dtype)
    for name in NAMES:
        weight, bias = generator.linear(3, 2, True, dtype)
        assert_same_bits(getattr(layer, f"W_{name}"), weight)
        assert_same_bits(getattr(layer, f"b_{name}"), bias)
    for init, method in (("uniform", "rand"), ("normal", "randn")):
        generator = regard.TorchGenerator(5)
        layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(5), dtype=dtype)
        for name in NAMES:
            drawn = getattr(generator, method)(3, 2, dtype=dtype)
            assert_same_bits(getattr(layer, f"W_{name}"), drawn)
            assert getattr(layer, f"b_{name}") is None


@pytest.mark.parametrize(
    ("init", "low", "high"), [("linear", -1 / 20, 1 / 20), ("uniform", 0, 1), ("normal", -6, 6)]
)
def test_distributions_are_alike_for_both_generators(init, low, high):
    mean, std = (0, 1) if init == "normal" else ((low + high) / 2, (high - low) / math.sqrt(12))
    for rng in (regard.TorchGenerator(0), np.random.default_rng(0)):
        for drawn in regard.SelfAttention(400, 300, init=init, rng=rng).state_dict().values():
            assert low <= drawn.min() < drawn.max() <= high
            assert abs(drawn.mean() - mean) < 5 * std / math.sqrt(drawn.size)
            assert abs(drawn.std() - std) < 5 * std / math.sqrt(drawn.size)


def test_numpy_generators():
    def weights(rng):
        return np.stack(list(regard.SelfAttention(3, 2, rng=rng).state_dict().values()))

    assert_same_bits(weights(7), weights(np.random.default_rng(7)))
    assert_same_bits(weights(np.int64(7)), weights(7))
    assert not np.array_equal(weights(7), weights(8))
    assert not np.array_equal(weights(None), weights(None))
    generator = np.random.default_rng(7)
    assert not np.array_equal(weights(generator), weights(generator))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {f"W_{n}.weight": (2, 3) for n in NAMES}),
        (
            {"qkv_bias": True},
            {f"W_{n}.{p}": s for n in NAMES for p, s in (("weight", (2, 3)), ("bias", (2,)))},
        ),
        ({"init": "uniform"}, {f"W_{n}": (3, 2) for n in NAMES}),
    ],
)
def test_states_go_round(options, wanted):
    """They are copies, and the short names of PyTorch's examples load too."""
    layer, other, third = (regard.SelfAttention(3, 2, rng=seed, **options) for seed in (1, 2, 3))
    state = layer.state_dict()
    assert [(key, array.shape) for key, array in state.items()] == list(wanted.items())
    other.load_state_dict(state)
    short = {"query": "q", "key": "k", "value": "v"}
    names = {key: key.replace(n, short[n]) for n in NAMES for key in state if n in key}
    third.load_state_dict({names[key]: array for key, array in state.items()})
    x = normal((6, 3))
    output = layer(x)
    for array in state.values():
        array[:] = 0
    for each in (layer, other, third):
        assert_same_bits(each(x), output)


def test_attributes_are_copied_into_the_parameters():
    layer, x = regard.SelfAttention(4, 3, rng=0).train(), np.ones((2, 4), np.float32)
    parameter, weight = layer.W_query, np.arange(12.0).reshape(3, 4)
    for given in (weight.astype(int), weight.tolist(), weight.astype(">f4"), weight):
        output = layer(x)
        layer.W_query = given
        assert layer.W_query is parameter
        assert np.array_equal(layer.state_dict()["W_query.weight"], weight)
        with pytest.raises(RuntimeError, match="have been replaced since the last call"):
            layer.backward(output)
    parameter[...] = 0
    assert weight.any()
    layer.b_query = None  # unchanged
    before = layer.state_dict()
    with pytest.raises(ValueError, match="W_key"):
        layer.W_key = np.ones((5, 4))
    assert_same_arrays(layer.state_dict(), before)
