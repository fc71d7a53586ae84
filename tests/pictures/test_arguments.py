"""Test the arguments that everything which shows attention has: `tokens` and weights."""

import ml_dtypes
import numpy as np
import pytest

import regard
from regard._show.labels import tokens_of_axes
from regard._show.weights import attention_weights

WORDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("tokens", "sizes", "query", "key"),
    [
        (None, (2, 3), None, None),
        (WORDS, (4, 4), WORDS, WORDS),
        ((word for word in WORDS), (4, 4), WORDS, WORDS),
        (np.array(WORDS, object), (4, 4), WORDS, WORDS),
        (WORDS, (4, 4, 0), WORDS, WORDS),
        (WORDS, (2, 4, 2), ["c", "d"], WORDS),
        (WORDS, (1, 4, 0), ["a"], WORDS),
        (WORDS, (0, 4, 9), [], WORDS),
        ([], (0, 0), [], []),
        ((["x"], WORDS), (1, 4), ["x"], WORDS),
        ((None, WORDS), (1, 4), None, WORDS),
        ((["x"], None), (1, 4), ["x"], None),
        (("x", "y"), (2, 2), ["x", "y"], ["x", "y"]),
        ((WORDS, np.array(["x", "y"])), (4, 2, 3), WORDS, ["x", "y"]),
        (["", "\n", "<b>", "\N{RIGHT-TO-LEFT MARK}"], (4, 4), *[["", "\n", "<b>", "\u200f"]] * 2),
    ],
)
def test_tokens(tokens, sizes, query, key):
    found = tokens_of_axes(tokens, *sizes)
    assert found == (query, key)
    for texts in found:
        assert all(type(text) is str for text in texts or [])


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
