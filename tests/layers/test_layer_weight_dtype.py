"""Test multi-head attention whose weights are kept in 16 or 8 bits."""

import copy
import pickle

import numpy as np
import pytest

import regard
from element_types import type_named
from interrupts import STEPS, interrupted, places
from messages import says
from reference import assert_same_bits
from trained_layers import assert_same_arrays

SETTINGS = {
    "self": {},
    "biases": {"qkv_bias": True, "out_bias": True},
    "grouped": {"num_kv_heads": 2, "rotary": True, "is_causal": True},
    "norms": {"qk_norm": "rms"},
    "sizes": {"d_key": 40, "d_value": 70},
}
KINDS = ["float16", "bfloat16", "int8"]


def layers(name, kind):
    """Return a layer whose weights have fewer bits, and one with the same weights in float32."""
    type_named(kind if kind != "int8" else "float32")
    options = SETTINGS[name]
    narrow = regard.MultiHeadAttention(96, 4, **options, rng=0, weight_dtype=kind)
    wide = regard.MultiHeadAttention(96, 4, **options, rng=1)
    wide.load_state_dict(narrow.state_dict())
    return narrow, wide


def inputs(name, length=5):
    rng = np.random.default_rng(3)
    widths = (96, 40, 70) if name == "sizes" else (96,)
    return [rng.standard_normal((2, length, width), dtype=np.float32) for width in widths]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SETTINGS)
def test_it_computes_what_the_rounded_weights_give_in_float32(name, kind, target):
    narrow, wide = layers(name, kind)
    for length in (1, 5, 40):
        x = inputs(name, length)
        assert_same_bits(narrow(*x), wide(*x))
        if name != "sizes":
            assert_same_bits(narrow(*x, x[0].copy()), wide(*x, x[0].copy()))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_near_what_was_given(kind):
    exact = regard.MultiHeadAttention(96, 4, qkv_bias=True, rng=0).state_dict()
    kept = layers("biases", kind)[0].state_dict()
    for name, array in exact.items():
        assert kept[name].dtype == np.float32
        if array.ndim == 1:
            assert_same_bits(kept[name], array)
            continue
        allowed = {
            "float16": np.abs(array) / 2048 + 2.0**-25,
            "bfloat16": np.abs(array) / 256,
            "int8": np.abs(array).max() / 254 * (1 + 1e-4),
        }[kind]
        off = np.abs(kept[name] - array)
        assert (off <= allowed).all()
        assert off.max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_states_go_round(kind):
    narrow, _ = layers("grouped", kind)
    x = inputs("grouped")
    other = regard.MultiHeadAttention(
        96, 4, **SETTINGS["grouped"], rng=7, weight_dtype=type_named(kind)
    )
    for names, prefix in (("regard", ""), ("llama", "model.layers.3.self_attn")):
        other.load_state_dict(narrow.state_dict(names, prefix), prefix)
        assert_same_bits(other(*x), narrow(*x))
    for same in (copy.deepcopy(narrow), pickle.loads(pickle.dumps(narrow))):
        assert_same_bits(same(*x), narrow(*x))
        same.load_state_dict(regard.MultiHeadAttention(96, 4, num_kv_heads=2, rng=5).state_dict())
        assert not np.array_equal(same(*x), narrow(*x))


def test_a_state_may_hold_quantized_weights():
    floats = regard.MultiHeadAttention(96, 4, rng=0)
    state = floats.state_dict("llama")
    quantized = {name: regard.QuantizedWeight(weight) for name, weight in state.items()}
    narrow = regard.MultiHeadAttention(96, 4, rng=1, weight_dtype="int8")
    narrow.load_state_dict(quantized)
    wide = regard.MultiHeadAttention(96, 4, rng=2)
    wide.load_state_dict(quantized)
    x = inputs("self")
    assert_same_bits(narrow(*x), wide(*x))
    assert 0 < np.abs(narrow(*x) - floats(*x)).max() < 0.01


def test_with_a_cache_token_by_token(target):
    narrow, wide = layers("grouped", "int8")
    x = inputs("grouped", 9)[0]
    whole = narrow(x)
    for layer in (narrow, wide):
        cache = regard.KVCache(2, 2, 24)
        steps = [layer(x[:, i : i + 1], cache=cache) for i in range(9)]
        assert np.allclose(np.concatenate(steps, axis=1), whole, atol=1e-5)


def test_a_state_that_cannot_be_kept_changes_nothing():
    x = inputs("self")
    for kind, bad, words in (("int8", np.nan, "W_out finite nan"), ("float16", 1e5, "W_out large")):
        layer = regard.MultiHeadAttention(96, 4, rng=0, weight_dtype=kind)
        before = layer(*x)
        state = regard.MultiHeadAttention(96, 4, rng=1).state_dict()
        state["out_proj.weight"][5, 7] = bad
        with pytest.raises(ValueError, match=says(*words.split())):
            layer.load_state_dict(state)
        assert_same_bits(layer(*x), before)


def test_what_such_a_layer_refuses():
    layer = regard.MultiHeadAttention(96, 4, rng=0, weight_dtype="int8")
    for method in (layer.train, layer.parameters):
        with pytest.raises(ValueError, match=says("weight_dtype", "int8")):
            method()
    assert not layer.training
    assert repr(layer).endswith("dtype=float32, weight_dtype=int8)")
    make = regard.MultiHeadAttention
    with pytest.raises(ValueError, match=says("dtype", "weight_dtype", "float64")):
        make(96, 4, dtype=np.float64, weight_dtype="int8")
    for bad in ("int4", np.float64, "float32"):
        with pytest.raises(ValueError, match=says("weight_dtype", "float16")):
            make(96, 4, weight_dtype=bad)
    with pytest.raises(TypeError, match=says("weight_dtype")):
        make(96, 4, weight_dtype=object())


@STEPS
@pytest.mark.parametrize("weight_dtype", ["float16", "int8"])
def test_ctrl_c_loads_all_weights_or_none(weight_dtype, step):
    layer = regard.MultiHeadAttention(16, 2, weight_dtype=weight_dtype, rng=0)
    old = layer.state_dict()
    new = {name: array + 1 for name, array in old.items()}
    layer.load_state_dict(new)
    loaded = layer.state_dict()
    outcomes = []
    for number in places(lambda: layer.load_state_dict(new), step):
        layer.load_state_dict(old)
        assert interrupted(number, lambda: layer.load_state_dict(new))
        is_new = np.array_equal(layer.state_dict()["W_query.weight"], loaded["W_query.weight"])
        assert_same_arrays(layer.state_dict(), loaded if is_new else old)
        outcomes.append(is_new)
    assert set(outcomes) == {False, True}
    assert outcomes == sorted(outcomes)


@pytest.mark.parametrize(
    "dtype", ["floaty", {"a": ("end", np.inf)}, object()], ids=lambda dtype: type(dtype).__name__
)
def test_a_wrong_dtype_is_an_error_that_names_it(dtype):
    with pytest.raises(TypeError, match=r"^dtype must be float32 or float64, got "):
        regard.MultiHeadAttention(8, 2, dtype=dtype)
    if not isinstance(dtype, str):
        with pytest.raises(TypeError, match=r"^weight_dtype must be None or one of "):
            regard.MultiHeadAttention(8, 2, weight_dtype=dtype)
