"""Test what is accepted as attention weights by the calls that show them."""

import re

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


@pytest.mark.parametrize(
    "weights",
    [
        [[1, 0], [0, 1]],
        np.eye(3, dtype=np.int8),
        [[0.667, 0.334]],  # rounded to three decimals
        np.zeros((2, 0)),
        np.zeros((0, 2)),
        np.zeros((0, 3, 4)),
        [[np.nan, np.nan], [0.5, 0.5]],
        [[0.2, 0.1]],  # the rest belongs to a sink
        [[-0.0, 0.0]],
    ],
)
def test_what_else_passes(weights):
    assert attention_weights(weights).shape == np.shape(weights)


def test_returned_weights_pass_with_every_type():
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32, np.float64):
        query, key = rng.standard_normal((2, 2, 2000, 8)).astype(dtype)
        value = key[..., :1]
        _, weights = regard.scaled_dot_product_attention(query, key, value, return_weights=True)
        attention_weights(weights)


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


def test_a_list_is_always_an_array_of_weights():
    shown = regard.show([A, A])
    assert str(shown) == str(regard.show(np.stack([A, A])))


LARGE = np.full((2, 3, 100_000), 1e-5)
LARGE[1, 2, 99_999] = -0.25


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (None, TypeError, "weights must be an array, got None"),
        ([["a"]], TypeError, "weights must be an array of float, got <U1"),
        (np.eye(2, dtype=bool), TypeError, "regard.plot.pattern draws a mask"),
        (
            regard.masks.Ranges(0, [1, 2]),
            TypeError,
            "weights must be an array of float, got Ranges: regard.plot.pattern draws a mask",
        ),
        (np.eye(2, dtype=complex), TypeError, "weights must be an array of float, got complex128"),
        (np.ones(3), ValueError, "weights must have shape (..., q_len, kv_len), got shape (3,)"),
        ([[0.5, 0.5], [0.5]], ValueError, "weights must be an array or a regular nested list"),
        ([[0.5, -0.1]], ValueError, "weights must be from 0 to 1, got -0.1 at [0, 1]: weights are"),
        ([[0.5, np.inf]], ValueError, "got inf at [0, 1]"),
        ([[np.nan, 3.0]], ValueError, "got 3 at [0, 1]: weights are the softmax of scores"),
        (LARGE, ValueError, "got -0.25 at [1, 2, 99999]"),
        ([[[0.5, 0.5]], [[0.6, 0.6]]], ValueError, "add up to at most 1 in each row, got 1.2 in"),
        ([[0.6, 0.6]], ValueError, "weights after dropout"),
        (
            [[0.9, 0.8], [0.1, 0.2]],
            ValueError,
            "swap the last two axes if queries and keys are exchanged",
        ),
    ],
)
def test_what_is_refused(weights, error, message):
    with pytest.raises(error, match=re.escape(message)):
        attention_weights(weights)
