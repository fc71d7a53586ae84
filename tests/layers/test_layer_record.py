"""Recordings of regard's own layers contain the weights that calls return."""

import numpy as np
import pytest

import regard

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 16))
MEMORY = RNG.standard_normal((2, 9, 16))


def multi_head(**options):
    return regard.MultiHeadAttention(16, 4, rng=0, dtype=np.float64, **options)


CALLS = {
    "plain": (multi_head(), (X,), {}),
    "one sequence": (multi_head(), (X[0],), {}),
    "grouped": (multi_head(num_kv_heads=2, head_dim=6, qkv_bias=True), (X,), {}),
    "causal": (multi_head(is_causal=True, window=(3, 0)), (X,), {"query_offset": 2}),
    "rotary": (
        multi_head(rotary=True, qk_norm="rms", is_causal=True),
        (X,),
        {"query_offset": [0, 3], "left_padding": [1, 0]},
    ),
    "alibi": (multi_head(alibi=True), (X, MEMORY), {"query_offset": "end", "key_lengths": [9, 5]}),
    "cross": (multi_head(), (X, MEMORY, MEMORY), {"mask": RNG.random((2, 1, 6, 9)) < 0.5}),
    "sparse": (multi_head(), (X,), {"mask": regard.masks.sliding(6, window=(1, 1))}),
    "numbers": (
        multi_head(),
        (X,),
        {"scale": [0.1, 0.2, 0.3, 0.4], "softcap": 2.0, "sinks": np.ones(4), "threads": 1},
    ),
    "integers": (multi_head(), (X.round().astype(int).tolist(),), {}),
    "one head": (
        regard.SelfAttention(16, 3, rng=0, dtype=np.float64),
        (X,),
        {"is_causal": True, "threads": 1},
    ),
    "one head, masked": (
        regard.SelfAttention(16, 3, rng=0, qkv_bias=True, dtype=np.float64),
        (X, RNG.standard_normal((2, 6, 6))),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_weights_of_a_call(name):
    layer, arguments, options = CALLS[name]
    _, wanted = layer(*arguments, **options, return_weights=True)
    recording = layer.record(*arguments, **options)
    (one,) = recording
    assert one.name == type(layer).__name__
    _, weights = regard.scaled_dot_product_attention(
        one.query, one.key, one.key, one.mask, **one.options, return_weights=True
    )
    weights = weights[..., 0, :, :] if name.startswith("one head") else weights
    assert np.array_equal(weights, wanted)


def test_tables_of_biases_are_recorded():
    layer = multi_head(distance_bias=3)
    table = RNG.standard_normal((4, 5))
    layer.load_state_dict(layer.state_dict() | {"distance_bias": table})
    _, wanted = layer(X, return_weights=True)
    (one,) = layer.record(X)
    layer.load_state_dict(layer.state_dict() | {"distance_bias": 0 * table})
    assert np.array_equal(one.options["distance_bias"], table)
    _, weights = regard.scaled_dot_product_attention(
        one.query, one.key, one.key, **one.options, return_weights=True
    )
    assert np.array_equal(weights, wanted)


def test_the_callers_arrays_may_change():
    mask, sinks = RNG.standard_normal((6, 6)), np.ones(4)
    (one,) = multi_head().record(X, mask=mask, sinks=sinks)
    before = mask.copy()
    mask[:] = sinks[:] = 7
    assert np.array_equal(one.mask, before)
    assert one.options["sinks"].tolist() == [1] * 4


def test_train_mode_holds_nothing_of_a_recording():
    layer = multi_head(dropout=0.5).train()
    wanted = layer.record(X)[0]
    layer(X, dropout_seed=1)
    layer.record(2 * X)
    layer.backward(X)  # of the call, not of the recording
    assert layer.grads
    with pytest.raises(RuntimeError):
        layer.backward(X)
    assert np.array_equal(layer.record(X, dropout_seed=3)[0].query, wanted.query)
