"""Test head gates: what they multiply, in every kind of call, and their gradients."""

from itertools import pairwise

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from trained_layers import HEADS, D, build, check, normal

B = 3
GIVEN = {
    "heads": normal(HEADS, 5),
    "entries": normal((B, HEADS), 5),
    "one entry": normal((1, HEADS), 5),
    "one number of each entry": normal((B, 1), 5),
    "one number": np.float64(0.3),
    "ablation": np.array([True, False, True, True]),
    "zeros": np.zeros(HEADS),
    "integers": [2, 0, -1, 1],
}
NAMES = ["plain", "gates", "everything"]
SHAPES = [((B, 4, D),), ((B, 4, D), (B, 7, D)), ((4, D), (B, 7, D))]
# Every kind of gates with every layer; the shapes rotate.
CASES = [
    (given, name, SHAPES[(i + j) % 3])
    for i, given in enumerate(GIVEN)
    for j, name in enumerate(NAMES)
]


@pytest.mark.parametrize(("given", "name", "shapes"), CASES)
def test_gradients_are_those_of_the_layer_written_out(given, name, shapes):
    """The given gates and the learned gates are multiplied."""
    inputs = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    check(*build(name), inputs, {"head_gates": GIVEN[given]})


def test_gates_of_a_call_without_batch():
    check(*build("gates"), [normal((4, D))], {"head_gates": GIVEN["heads"]})


def test_gates_of_several_batch_axes():
    gates = normal((2, 1, HEADS), 5)
    check(*build("everything"), [normal((2, 3, 4, D))], {"head_gates": gates})


def test_gates_with_dropout():
    layer, meaning = build("gates", dropout=0.3)
    check(layer, meaning, [normal((B, 4, D))], {"dropout_seed": 4, "head_gates": GIVEN["entries"]})


def test_single_precision():
    layer, meaning = build("everything", np.float32)
    x = normal((B, 4, D), 0, np.float32)
    check(layer, meaning, [x], {"head_gates": GIVEN["entries"].astype(np.float32)}, limit=4e-6)


@pytest.mark.parametrize("step", [1e-5])
def test_central_differences(step):
    """The layer's own output changes by a step to either side of every gate."""
    layer, _ = build("everything")
    x, gates = normal((B, 4, D)), normal((B, HEADS), 5)
    output = layer(x, head_gates=gates)
    grad = normal(output.shape, 9)
    of_given = layer.backward(grad).head_gates
    layer.eval()
    learned = layer.parameters()["head_gates"]
    for array, gradient in ((gates, of_given), (learned, layer.grads["head_gates"])):
        for place in np.ndindex(array.shape):
            before, sums = array[place], []
            for moved in (before + step, before - step):
                array[place] = moved
                sums.append((grad * (layer(x, head_gates=gates) - output)).sum())
            array[place] = before
            assert abs((sums[0] - sums[1]) / (2 * step) - gradient[place]) < 1e-8


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


def gated_layer(dtype=np.float32, **options):
    layer = regard.MultiHeadAttention(
        8, 4, num_kv_heads=2, rotary=True, is_causal=True, head_gates=True, rng=0, dtype=dtype,
        **options,
    )  # fmt: skip
    layer.parameters()["head_gates"][:] = [1.0, 0.5, -2.0, 0.0]
    return layer


@pytest.mark.parametrize("is_training", [False, True])
def test_both_modes_give_the_same_bits(is_training):
    layer, x = gated_layer(), normal((B, 5, 8), 0, np.float32)
    gates = normal((B, 4), 5)
    wanted = layer(x, head_gates=gates)
    if is_training:
        layer.train()
    output, _ = layer(x, head_gates=gates, return_weights=True)
    assert_same_bits(output, wanted)


def test_a_cache_gives_the_same_rows():
    layer, x = gated_layer(), normal((B, 6, 8), 0, np.float32)
    gates = normal((B, 4), 5)
    whole = layer(x, head_gates=gates)
    cache = regard.KVCache(B, 2, 2)
    parts = [
        layer(x[:, part], cache=cache, head_gates=gates)
        for part in (slice(0, 4), slice(4, 5), slice(5, 6))
    ]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="head_gates must be a number for each head"):
        layer(x[:, :1], cache=cache, head_gates=np.ones(3))
    assert (cache.lengths == 6).all()


@pytest.mark.parametrize("has_cache", [False, True])
def test_packed_sequences_have_gates_of_their_own(has_cache):
    layer, x = gated_layer(), normal((9, 8), 0, np.float32)
    starts, gates = [0, 4, 4, 9], normal((3, 4), 5)
    cache = {"cache": regard.KVCache(3, 2, 2)} if has_cache else {}
    output = layer(x, starts=starts, head_gates=gates, **cache)
    for number, (first, end) in enumerate(pairwise(starts)):
        if first == end:
            continue
        alone = layer(x[first:end], head_gates=gates[number])
        np.testing.assert_allclose(output[first:end], alone, rtol=0, atol=1e-5)
    for shape, same in (((4,), (3, 4)), ((3, 1), (3, 4)), ((1, 4), (3, 4)), ((), (4,))):
        given = normal(shape, 7)
        again = layer(x, starts=starts, head_gates=given)
        full = layer(x, starts=starts, head_gates=np.broadcast_to(given, same))
        assert_same_bits(again, full)


def test_changing_the_gates_after_a_call_changes_no_gradient():
    layer, x = gated_layer().train(), normal((B, 5, 8), 0, np.float32)
    grad, found = normal((B, 5, 8), 9, np.float32), []
    for spoil in (False, True):
        gates = normal((B, 4), 5, np.float32)
        layer.zero_grads()
        layer(x, head_gates=gates)
        if spoil:
            gates[...] = np.nan
        found.append((*layer.backward(grad)[:1], *layer.grads.values()))
    assert_same_bits(found[1], found[0])


def test_states():
    """Other layouts have no place for gates, which are then 1."""
    layer = gated_layer()
    state = layer.state_dict()
    assert_same_bits(state["head_gates"], np.array([1, 0.5, -2, 0], np.float32))
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
    with pytest.raises(ValueError, match="unexpected: head_gates"):
        plain.load_state_dict(state)


def test_importance_of_heads():
    """A head whose output does not matter has no importance (Michel et al. 2019)."""
    layer = regard.MultiHeadAttention(8, 4, rng=0, dtype=np.float64).train()
    layer.parameters()["out_proj.weight"][:, 2:4] = 0
    x = normal((B, 5, 8))
    output = layer(x, head_gates=np.ones((B, 4)))
    importance = np.abs(layer.backward(output).head_gates).mean(axis=0)
    assert importance[1] == 0
    assert (importance[[0, 2, 3]] > 0).all()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (0, 3, 8)], ids=str)
def test_empty_inputs(shape):
    layer, x = gated_layer().train(), np.zeros(shape, np.float32)
    gradients = layer.backward(layer(x, head_gates=np.ones(4)))
    assert gradients.query.shape == shape
    assert gradients.head_gates.tolist() == [0.0] * 4
    assert layer.grads["head_gates"].tolist() == [0.0] * 4


def test_gates_may_overflow_without_a_warning():
    """NaN and infinity are results."""
    layer, x = gated_layer().train(), normal((B, 5, 8), 0, np.float32)
    output = layer(x, head_gates=np.array([1e300, 1, 1, 1]))
    assert not np.isfinite(output).any()
    gradients = layer.backward(np.ones_like(output))
    assert np.isfinite(gradients.head_gates[1:]).all()


LAYER, X = gated_layer(), np.zeros((B, 5, 8))
WRONG = {
    "too few": (lambda: LAYER(X, head_gates=[1, 2, 3]), ValueError, r"shape \(4,\) or \(3, 4\)"),
    "of the batch": (lambda: LAYER(X, head_gates=np.ones((2, 4))), ValueError, r"got shape \(2, 4"),
    "too many axes": (lambda: LAYER(X[0], head_gates=np.ones((1, 4))), ValueError, "got shape"),
    "of tokens": (
        lambda: LAYER(X[0], starts=[0, 5], head_gates=np.ones((5, 4))),
        ValueError,
        r"shape \(4,\) or \(1, 4\) with the batch axes, got shape \(5, 4\)",
    ),
    "text": (lambda: LAYER(X, head_gates="ab"), TypeError, "head_gates must be an array of real"),
    "complex": (lambda: LAYER(X, head_gates=np.ones(4) * 1j), TypeError, "got complex128"),
    "array for the constructor": (
        lambda: regard.MultiHeadAttention(8, 4, head_gates=np.ones(4)),
        TypeError,
        "head_gates must be True or False, got ndarray",
    ),
    "one head": (
        lambda: regard.SelfAttention(8, 4)(X, head_gates=1),
        TypeError,
        "no argument head_gates: leave it out: this layer has one head",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_the_argument(name):
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        call()
