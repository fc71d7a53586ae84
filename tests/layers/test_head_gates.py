"""Test what head gates multiply; their gradients are tested with those of the layer."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from trained_layers import normal


def gated_layer(dtype=np.float32, **options):
    layer = regard.MultiHeadAttention(
        8, 4, num_kv_heads=2, rotary=True, is_causal=True, head_gates=True, rng=0, dtype=dtype,
        **options,
    )  # fmt: skip
    layer.parameters()["head_gates"][:] = [1.0, 0.5, -2.0, 0.0]
    return layer


def test_a_gate_multiplies_the_columns_of_the_output_projection(dtype):
    """A gate of 0 equals a layer whose columns for the head are 0, and the weights do not
    change."""
    layer = regard.MultiHeadAttention(8, 4, is_causal=True, out_bias=True, rng=0, dtype=dtype)
    x = normal((2, 5, 8), 0, dtype)
    plain, weights = layer(x, return_weights=True)
    assert_same_bits(layer(x, head_gates=np.ones(4)), plain)
    gated, same = layer(x, head_gates=[1, 0, 0.5, 1], return_weights=True)
    assert_same_bits(same, weights)
    columns = layer.parameters()["out_proj.weight"]
    columns[:, 2:4] = 0
    columns[:, 4:6] *= 0.5
    assert_same_bits(gated, layer(x))


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 4), ()], ids=str)
def test_gates_of_packed_sequences_broadcast(shape):
    layer, x, given = gated_layer(), normal((9, 8), 0, np.float32), normal(shape, 7)
    full = np.broadcast_to(given, (3, 4) if shape else (4,))
    wanted = layer(x, starts=[0, 4, 4, 9], head_gates=full)
    assert_same_bits(layer(x, starts=[0, 4, 4, 9], head_gates=given), wanted)


def test_changing_the_gates_after_a_call_changes_no_gradient():
    layer, x = gated_layer().train(), normal((3, 5, 8), 0, np.float32)
    grad, found = normal((3, 5, 8), 9, np.float32), []
    for spoil in (False, True):
        gates = normal((3, 4), 5, np.float32)
        layer.zero_grads()
        layer(x, head_gates=gates)
        if spoil:
            gates[...] = np.nan
        found.append((*layer.backward(grad)[:1], *layer.grads.values()))
    assert_same_bits(found[1], found[0])


def test_layouts_without_gates():
    """Other layouts have no place for gates, which are then 1."""
    layer = gated_layer()
    state = layer.state_dict()
    with pytest.raises(ValueError, match="no place for head_gates unless it is 1"):
        layer.state_dict("llama")
    plain = regard.MultiHeadAttention(8, 4, num_kv_heads=2, rng=5)
    layer.load_state_dict(plain.state_dict("llama"))
    assert_same_bits(layer.parameters()["head_gates"], np.ones(4, np.float32))
    assert_same_bits(
        layer.state_dict("llama")["o_proj.weight"], plain.state_dict()["out_proj.weight"]
    )
    layer.load_state_dict(state)
    assert_same_bits(layer.state_dict()["head_gates"], state["head_gates"])
    with pytest.raises(ValueError, match="missing: head_gates"):
        layer.load_state_dict(plain.state_dict())


def test_importance_of_heads():
    """A head whose output does not matter has no importance (Michel et al. 2019)."""
    layer = regard.MultiHeadAttention(8, 4, rng=0, dtype=np.float64).train()
    layer.parameters()["out_proj.weight"][:, 2:4] = 0
    x = normal((3, 5, 8))
    output = layer(x, head_gates=np.ones((3, 4)))
    importance = np.abs(layer.backward(output).head_gates).mean(axis=0)
    assert importance[1] == 0
    assert (importance[[0, 2, 3]] > 0).all()
