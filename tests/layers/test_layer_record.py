"""Recordings of regard's own layers contain the weights that calls return."""

import numpy as np
import pytest

import regard
from trained_layers import D, many_heads, multi_head, normal, one_head

X, MEMORY = normal((2, 6, D)), normal((2, 9, D), 1)
CALLS = {
    "everything": (many_heads(np.float64), (X,), {"query_offset": 2}),
    "one sequence": (multi_head(), (X[0],), {}),
    "rotary": (
        multi_head(rotary=True, qk_norm="rms", is_causal=True),
        (X,),
        {"query_offset": [0, 3], "left_padding": [1, 0]},
    ),
    "alibi": (multi_head(alibi=True), (X, MEMORY), {"query_offset": "end", "key_lengths": [9, 5]}),
    "cross": (multi_head(), (X, MEMORY, MEMORY), {"mask": normal((2, 1, 6, 9)) < 0}),
    "sparse": (multi_head(), (X,), {"mask": regard.masks.sliding(6, window=(1, 1))}),
    "numbers": (
        multi_head(),
        (X.round().astype(int).tolist(),),
        {"scale": [0.1, 0.2, 0.3, 0.4], "softcap": 2.0, "sinks": np.ones(4), "threads": 1},
    ),
    "one head": (one_head(np.float64), (X, normal((2, 6, 6))), {"is_causal": True}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_weights_of_a_call(name):
    layer, arguments, options = CALLS[name]
    _, wanted = layer.eval()(*arguments, **options, return_weights=True)
    (one,) = layer.record(*arguments, **options)
    for parameter in layer.state_dict():  # the recording has copies
        layer.load_state_dict(layer.state_dict() | {parameter: 0 * layer.state_dict()[parameter]})
    assert one.name == type(layer).__name__
    _, weights = regard.scaled_dot_product_attention(
        one.query, one.key, one.key, one.mask, **one.options, return_weights=True
    )
    assert np.array_equal(weights[..., 0, :, :] if name == "one head" else weights, wanted)


def test_the_callers_arrays_may_change():
    mask, sinks = normal((6, 6)), np.ones(4)
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
