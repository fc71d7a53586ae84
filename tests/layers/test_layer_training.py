"""Test layers in train and in eval mode: what accumulates, what is kept, and the order of calls."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from trained_layers import (
    HEADS,
    D,
    assert_same_arrays,
    gradients_of,
    many_heads,
    normal,
    one_head,
    output_like,
)


@pytest.fixture(params=[one_head, many_heads])
def kind(request):
    """Return either kind of layer."""
    return request.param


def test_gradients_accumulate_until_they_are_removed(kind):
    layer = kind()
    grads = layer.grads
    inputs = [normal((2, 4, D), seed) for seed in range(3)]
    starts = [normal(layer(x).shape, 8 + seed) for seed, x in enumerate(inputs)]
    parts = [gradients_of(layer, *each) for each in zip(inputs, starts, strict=True)]
    layer.zero_grads()
    assert grads == {}
    for x, start, part in zip(inputs, starts, parts, strict=True):
        layer(x)
        assert_same_bits(layer.backward(start), part["x"])
    assert layer.grads is grads
    assert list(grads) == list(layer.parameters())
    for name, total in grads.items():
        assert_same_bits(total, parts[0][name] + parts[1][name] + parts[2][name])
    layer.zero_grads()
    assert grads == {}


def test_arguments_have_a_gradient_each():
    """An array that is passed three times has three gradients, whose sum is the gradient of passing
    it once."""
    layer = many_heads(np.float64)
    x = normal((2, 4, D))
    grad = output_like(layer, x)
    wanted = gradients_of(layer, x, grad)
    for inputs in ((x, x), (x, x, x), (x, x.copy(), x), (x, x.copy(), x.copy())):
        layer.zero_grads()
        layer(*inputs)
        parts = [part for part in layer.backward(grad) if part is not None]
        assert len(parts) == len(inputs)
        np.testing.assert_allclose(sum(parts), wanted["x"], rtol=0, atol=1e-13)
        for name, gradient in layer.grads.items():
            np.testing.assert_allclose(gradient, wanted[name], rtol=0, atol=1e-12)


def test_dropout_is_for_train_mode(kind):
    layer = kind(dropout=0.4)
    x = normal((2, 40, D))
    first, weights = layer(x, dropout_seed=3, return_weights=True)
    assert_same_bits(layer(x, dropout_seed=3), first)
    assert not np.array_equal(layer(x, dropout_seed=4), first)
    plain, whole = layer.eval()(x, dropout_seed=3, return_weights=True)
    assert_same_bits(layer(x), plain)
    kept = weights != 0
    assert 0.5 < kept[whole > 0].mean() < 0.7
    np.testing.assert_allclose(weights[kept], whole[kept] / 0.6, rtol=1e-5)


def test_the_callers_arrays_may_change_after_the_call(kind):
    """It is common to add the output to x, or to apply an activation to it in place."""
    layer = kind()
    is_many = isinstance(layer, regard.MultiHeadAttention)
    x, mask = normal((2, 4, D), 0, np.float32), normal((2, 1, 4, 4) if is_many else (2, 4, 4), 3)
    grad = output_like(layer, x)
    more = {"key_lengths": np.array([4, 3]), "query_offset": np.array([0, 1])}
    more |= {"sinks": normal(HEADS), "head_gates": normal((2, HEADS), 5, np.float32)}
    more = more if is_many else {}
    wanted = gradients_of(layer, x, grad, mask=mask, **more)
    layer.zero_grads()
    output, weights = layer(x, mask=mask, return_weights=True, **more)
    for array in (x, mask, output, weights, *more.values()):
        array[...] = 1
    assert_same_arrays({"x": layer.backward(grad)} | layer.grads, wanted)


def test_only_train_mode_holds_memory(kind):
    layer, x = kind().eval(), normal((2, 500, D), 0, np.float32)
    grad = output_like(layer, x)
    tracemalloc.start()
    sizes = []
    for action in (layer.eval, layer, layer.train, layer, layer, layer.backward, layer, layer.eval):
        given = {layer: [x], layer.backward: [grad]}.get(action, [])
        action(*given)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    _, first, held, again, after, once_more, end = np.subtract(sizes[1:], sizes[0])
    assert held > 3 * x.nbytes
    assert max(first, after, end) < held // 10
    assert abs(again - held) < held // 10  # replaces the first
    assert abs(once_more - held) < held // 10


def test_parameters_are_those_that_calls_read_and_loading_writes(kind):
    layer = kind(np.float64)
    x = normal((2, 4, D))
    before = layer(x)
    parameters, state = layer.parameters(), layer.state_dict()
    assert list(parameters) == list(state)
    for seed, (name, array) in enumerate(parameters.items()):
        array += normal(array.shape, seed)
        assert not np.array_equal(layer(x), before), name
        assert_same_bits(layer.state_dict()[name], array)
        array[...] = state[name]
    changed = {name: 2 * array for name, array in state.items()}
    layer(x)
    layer.load_state_dict(changed)
    assert_same_arrays(parameters, changed)
    with pytest.raises(RuntimeError, match="have been replaced since the last call"):
        layer.backward(before)
    layer.load_state_dict(state)
    assert_same_bits(layer(x), before)


@pytest.mark.parametrize("twin_of", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_go_on_by_themselves(twin_of, kind):
    layer, x = kind(dropout=0.1), normal((2, 4, D))
    layer.backward(layer(x, dropout_seed=1))
    before = layer(x, dropout_seed=2)
    twin = twin_of(layer)
    assert twin.training
    with pytest.raises(RuntimeError, match="a copy of a layer has none: call the copy"):
        twin.backward(before)
    for seed, (name, array) in enumerate(twin.parameters().items()):
        assert_same_bits(twin(x, dropout_seed=2), before)
        kept = array.copy()
        array += normal(array.shape, seed)
        assert not np.array_equal(twin(x, dropout_seed=2), before), name
        array[...] = kept
    assert_same_bits(layer(x, dropout_seed=2), before)
    assert_same_arrays(twin.grads, layer.grads)
    assert all(twin.grads[name] is not layer.grads[name] for name in layer.grads)
