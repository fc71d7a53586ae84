"""Test layers with sparse masks against the same layers with the same dense masks."""

import numpy as np
import pytest

import regard
import sparse_cases
from reference import assert_same_bits
from trained_layers import D, assert_same_arrays, gradients_of, many_heads, normal, one_head

LENGTH = 40
FORMS = [name for name in sparse_cases.NAMES if name != "nothing"]


def mask_of(name, heads):
    """Return a mask of the layer's weights, whose axes are (batch, heads, length, length) or
    (batch, length, length)."""
    mask = sparse_cases.sparse_masks(2, heads, LENGTH, LENGTH)[name]
    return mask[..., 0, :, :] if heads == 1 and mask.ndim > 2 else mask


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("kind", [one_head, many_heads])
def test_sparse_masks(kind, name):
    layer = kind()
    sparse = mask_of(name, 1 if kind is one_head else 4)
    dense = sparse_cases.dense(sparse, LENGTH)
    x = normal((2, LENGTH, D))
    output = layer(x, mask=sparse)
    assert_same_bits(output, layer(x, mask=dense))
    grad = normal(output.shape, 8)
    found, wanted = (gradients_of(layer, x, grad, mask=mask) for mask in (sparse, dense))
    assert_same_arrays(found, wanted)
    layer.eval()
    results = [layer(x, mask=mask, return_weights=True) for mask in (sparse, dense)]
    assert_same_bits(*results)


def test_pairs_with_a_bias():
    layer = many_heads()
    sparse, bias = mask_of("ranges of heads", 4), normal((LENGTH, LENGTH), 3)
    x, grad = normal((2, LENGTH, D)), normal((2, LENGTH, D), 8)
    pairs = (sparse, bias), (sparse.to_dense(), bias)
    assert_same_arrays(*(gradients_of(layer, x, grad, mask=pair) for pair in pairs))


def test_the_cache_has_sparse_masks():
    layer = regard.MultiHeadAttention(D, 2, is_causal=True, distance_bias=3, rng=0)
    x = normal((1, LENGTH, D)).astype(np.float32)
    mask = regard.masks.sliding(LENGTH, window=(7, 0))
    cache = regard.KVCache(1, 2, 3)
    parts = [layer(x[:, :30], mask=mask[:30, :30], cache=cache)]
    parts += [
        layer(x[:, i : i + 1], mask=mask[i : i + 1, : i + 1], cache=cache)
        for i in range(30, LENGTH)
    ]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), layer(x, mask=mask), atol=1e-6)


@pytest.mark.parametrize("shape", [(41, 40), (40, 41), (3, 40, 40)])
def test_masks_of_other_shapes(shape):
    mask = regard.masks.Ranges(np.zeros(shape[:-1], int), 9, kv_len=shape[-1])
    with pytest.raises(ValueError, match="mask"):
        one_head()(normal((2, LENGTH, D)), mask=mask)
    with pytest.raises(ValueError, match="mask"):
        many_heads()(normal((2, LENGTH, D)), mask=mask)


def test_biases_of_distances_begin_at_0_and_change_no_draw():
    plain, biased = (
        regard.MultiHeadAttention(D, 2, rng=0, out_bias=True, **options)
        for options in ({}, {"distance_bias": 4})
    )
    assert not biased.state_dict()["distance_bias"].any()
    assert biased.parameters()["distance_bias"].shape == (2, 7)
    x = normal((2, 5, D))
    assert_same_bits(biased(x), plain(x))
    assert "distance_bias=4" in repr(biased)
    assert "distance_bias" not in repr(plain)


def test_biases_of_distances_learn():
    """The layer learns to look at the previous key, which only the bias can tell it."""
    layer = regard.MultiHeadAttention(4, 1, distance_bias=2, rng=0, dtype=np.float64).train()
    for parameter in list(layer.parameters().values())[:4]:
        parameter[...] = np.eye(4)
    random = np.random.default_rng(0)
    for _ in range(60):
        x = random.standard_normal((8, 12, 4))
        layer.zero_grads()
        difference = layer(x)[:, 1:] - x[:, :-1]
        layer.backward(np.pad(difference, ((0, 0), (1, 0), (0, 0))))
        layer.parameters()["distance_bias"][...] -= 0.02 * layer.grads["distance_bias"]
    before, own, after = layer.parameters()["distance_bias"][0]
    assert before > own + 1
    assert before > after + 1


def test_t5_learns_by_the_gradient_of_its_table():
    table = normal((8, 2), 5)
    layer = regard.MultiHeadAttention(4, 2, distance_bias=7, rng=0, dtype=np.float64).train()
    bias = regard.positional.t5_distance_bias(table, max_distance=16)
    layer.load_state_dict(layer.state_dict() | {"distance_bias": bias})
    x = normal((2, 30, 4))
    grad = normal((2, 30, 4), 7)
    layer(x)
    layer.backward(grad)
    of_table = regard.positional.t5_distance_bias_backward(
        layer.grads["distance_bias"], num_buckets=8, max_distance=16
    )

    def loss(table):
        bias = regard.positional.t5_distance_bias(table, max_distance=16)
        layer.parameters()["distance_bias"][...] = bias
        return (layer(x) * grad).sum()

    for place in ((0, 0), (3, 1), (7, 0)):
        step = np.zeros(table.shape)
        step[place] = 1e-5
        slope = (loss(table + step) - loss(table - step)) / 2e-5
        np.testing.assert_allclose(of_table[place], slope, rtol=1e-6)
