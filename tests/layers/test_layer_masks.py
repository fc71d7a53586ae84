"""Layers with sparse masks have the bits of the same layers with the same dense masks."""

import pytest

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
