"""Test what is accepted as attention weights by the calls that show them."""

import ml_dtypes
import numpy as np
import pytest

import regard
from regard._show.weights import attention_weights


def softmax_of(rng, *shape):
    return regard.softmax(rng.standard_normal(shape))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("length", [7, 3000])
def test_weights_of_every_type_pass(dtype, length):
    weights = softmax_of(np.random.default_rng(0), 2, 3, length).astype(dtype)
    found = attention_weights(weights)
    assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
    assert found.dtype.isnative
    assert np.array_equal(found, weights.astype(found.dtype))


def test_what_can_be_read_is_not_copied():
    weights = softmax_of(np.random.default_rng(0), 4, 5, 6)
    assert attention_weights(weights) is weights
    turned = np.asfortranarray(weights)
    assert np.shares_memory(attention_weights(turned), turned)


A = np.eye(3)
PAIRS = [
    regard.scaled_dot_product_attention(A, A, A, return_weights=True),
    regard.scaled_dot_product_attention(A, A, A, return_weights=True, return_lse=True),
    (A, A),  # values that could be weights
    (A[:2], A[:0]),
    ([0.5, 0.5], [1.0, 0.0]),
]


@pytest.mark.parametrize("weights", PAIRS)
def test_a_tuple_is_never_weights(weights):
    with pytest.raises(TypeError, match=r"got a tuple of .: pass the second entry of the result"):
        regard.show(weights)
