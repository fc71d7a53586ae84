"""Test layers with inputs that are empty, hidden, special or of other types, and sparse masks."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_masks import drawn_mask
from drawn_problems import examples
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
from trained_layers import multi_head as layer_with


@pytest.mark.parametrize("shape", [(0, D), (2, 0, D), (0, 3, D)], ids=str)
@pytest.mark.parametrize("kind", [one_head, many_heads])
def test_empty_inputs(shape, kind):
    layer = kind()
    output, weights = layer(np.zeros(shape), return_weights=True)
    heads = (HEADS,) if kind is many_heads else ()
    assert weights.shape == (*shape[:-2], *heads, shape[-2], shape[-2])
    found = gradients_of(layer, np.zeros(shape), np.zeros(output.shape))
    assert found.pop("x").shape == shape
    for name, parameter in layer.parameters().items():
        assert_same_bits(found[name], np.zeros_like(parameter))


def test_rows_that_see_nothing_are_the_bias():
    layer = many_heads()
    bias = layer.state_dict()["out_proj.bias"]
    for inputs in ((normal((3, D)), np.zeros((0, D))), (normal((3, D)),)):
        hidden = np.zeros((3, len(inputs[-1])), bool)
        output, weights = layer(*inputs, mask=hidden, return_weights=True)
        assert_same_bits(output, np.tile(bias, (3, 1)))
        assert not weights.any()
        layer.zero_grads()
        layer.backward(np.ones_like(output))
        assert {n for n, each in layer.grads.items() if each.any()} == {"out_proj.bias"}


@pytest.mark.parametrize("kind", [one_head, many_heads])
@pytest.mark.parametrize("to", ["list", "int8", "uint64", "float16", "bfloat16", ">f4", "F"])
def test_inputs_and_gradients_are_converted(to, kind):
    def convert(array):
        if to in ("list", "F"):
            return array.tolist() if to == "list" else np.asfortranarray(array)
        return array.astype(pytest.importorskip("ml_dtypes").bfloat16 if to == "bfloat16" else to)

    layer = kind()
    x = np.arange(4.0 * D, dtype=np.float32).reshape(4, D) % 5
    grad = np.round(abs(output_like(layer, x))).astype(np.float32)
    wanted = gradients_of(layer, x, grad)
    assert_same_arrays(gradients_of(layer, convert(x), convert(grad)), wanted)


def test_nan_and_infinity_are_results():
    """They pass through all steps without a warning."""
    options = {"qk_norm": "rms", "rotary": True, "num_kv_heads": 2, "is_causal": True}
    layer = layer_with(np.float32, **options, head_gates=True).train()
    x, gates = normal((2, 4, D)), np.ones(HEADS)
    clean = layer(x)
    grad = np.ones_like(clean)
    assert not np.isfinite(layer(x, head_gates=[1e300, 1, 1, 1])).any()
    assert np.isfinite(layer.backward(grad).head_gates[1:]).all()
    x[0, 3, 1], x[1, 3, 1] = np.nan, np.inf
    output = layer(x, head_gates=gates)
    assert np.isnan(output[:, 3]).all()
    assert_same_bits(output[:, :3], clean[:, :3])
    assert np.isnan(layer.backward(grad).query[:, 3]).all()
    x, grad = normal((2, 4, D)), np.full_like(grad, 1e38)
    layer.zero_grads()
    layer(x)
    layer.backward(grad)
    first = np.isfinite(layer.grads["out_proj.weight"])
    layer(x)
    layer.backward(grad)
    # A sum overflows that was finite before.
    assert (first & np.isinf(layer.grads["out_proj.weight"])).any()


@pytest.mark.parametrize("number", [0.0, 1e-25])
def test_norms_of_vectors_whose_mean_square_is_zero(number):
    """The norm divides by the root of a mean square that is 0 or underflows."""
    layer = regard.MultiHeadAttention(8, 2, qk_norm=0, rng=0).train()
    output = layer(np.full((3, 8), number, np.float32))
    assert np.isnan(output).all()
    assert np.isnan(layer.backward(np.ones_like(output))).all()


def test_what_no_query_sees_may_be_anything():
    """NaN beyond the key lengths reaches no gradient, not even as NaN times 0."""
    layer = many_heads(np.float64)
    x, memory = normal((2, 4, D)), normal((2, 7, D), 1)
    hidden = np.arange(7) >= np.array([7, 4])[:, None]
    grad = output_like(layer, x)
    kinds = []
    for hole in (0.0, np.nan, np.inf):
        memory[hidden] = hole
        layer.zero_grads()
        layer(x, memory, key_lengths=[7, 4])
        gradients = layer.backward(grad)
        assert not gradients.key[hidden].any()
        kinds.append({"query": gradients.query, "key": gradients.key} | layer.grads)
    for found in kinds[1:]:
        assert_same_arrays(found, kinds[0])


@pytest.mark.parametrize("kind", [one_head, many_heads])
@examples(25)
@hypothesis.given(st.data())
def test_sparse_masks_and_threads_change_no_bit(kind, data):
    layer, x = kind(), normal((2, 40, D))
    sparse, dense = drawn_mask(data.draw, 40, 40)
    threads = data.draw(st.sampled_from([1, 2, 3]))
    output = layer(x, mask=sparse, threads=threads)
    assert_same_bits(output, layer(x, mask=dense))
    found, wanted = (gradients_of(layer, x, output, mask=mask) for mask in (sparse, dense))
    assert_same_arrays(found, wanted)
    layer.eval()
    results = [layer(x, mask=mask, return_weights=True) for mask in (sparse, dense)]
    assert_same_bits(*results)
