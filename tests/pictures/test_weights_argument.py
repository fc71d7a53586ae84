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


def results(*shape, **options):
    x = np.random.default_rng(0).standard_normal(shape)
    return regard.scaled_dot_product_attention(x, x, x, return_weights=True, **options)


@pytest.mark.parametrize(
    "returned",
    [
        results(6, 6),
        results(4, 6, 8),
        results(2, 4, 6, 8, return_lse=True),
        results(4, 6, 6, is_causal=True),
        regard.scaled_dot_product_attention(
            *np.zeros((2, 6, 4)), np.zeros((6, 0)), return_weights=True
        ),
        results(6, 6, mask=np.tri(6, k=-1, dtype=bool)),  # the first query is fully masked
        regard.SelfAttention(8, 2, rng=0)(np.eye(6, 8), return_weights=True),
    ],
)
def test_all_that_a_call_returns_is_refused(returned):
    with pytest.raises(TypeError, match=r"got the results of a call, .*: pass its second entry"):
        attention_weights(returned)
    attention_weights(returned[1])


def test_a_tuple_of_weights_is_an_array_of_them():
    rng = np.random.default_rng(0)
    a, b = softmax_of(rng, 2, 3, 4)
    assert np.array_equal(attention_weights((a, b)), [a, b])
    assert np.array_equal(attention_weights((np.eye(3), softmax_of(rng, 3, 3)))[0], np.eye(3))
    assert attention_weights((np.zeros((2, 0)), np.zeros((2, 0)))).shape == (2, 2, 0)
    assert np.array_equal(attention_weights(([0.5, 0.5], [1.0, 0.0])), [[0.5, 0.5], [1, 0]])


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
        ([[0.5, -0.1]], ValueError, "weights must be from 0 to 1, got -0.1 at [0, 1]: these look"),
        ([[0.5, np.inf]], ValueError, "got inf at [0, 1]"),
        ([[np.nan, 3.0]], ValueError, "got 3 at [0, 1]: these look like scores"),
        (LARGE, ValueError, "got -0.25 at [1, 2, 99999]"),
        ([[[0.5, 0.5]], [[0.6, 0.6]]], ValueError, "add up to at most 1 in each row, got 1.2 in"),
        ([[0.6, 0.6]], ValueError, "weights after dropout"),
        ([[0.9, 0.8], [0.1, 0.2]], ValueError, "queries and keys are exchanged; swap the last"),
    ],
)
def test_what_is_refused(weights, error, message):
    with pytest.raises(error, match=re.escape(message)):
        attention_weights(weights)
