"""Test the functions of language models other than attention: norms, activations, the next
token."""

import ml_dtypes
import numpy as np
import pytest

from cache_tokens import normal
from regard.layers import rms_norm
from regard.models import sample, silu, swiglu

TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def assert_near(actual, expected, dtype):
    assert actual.dtype == dtype
    error = 4 * float(ml_dtypes.finfo(dtype).eps)
    assert np.allclose(actual.astype(np.float64), expected, rtol=error, atol=0)


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_numbers(dtype):
    x, other = (normal(seed, 3, 5, 64).astype(dtype) for seed in (0, 1))
    weight = normal(2, 64).astype(dtype)
    wide, up, factors = (each.astype(np.float64) for each in (x, other, weight))
    before = x.copy()
    root = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-3)
    assert_near(rms_norm(x, weight, 1e-3), wide / root * factors, dtype)
    assert_near(rms_norm(x, eps=1e-3), wide / root, dtype)
    sigmoid = 1 / (1 + np.exp(-wide))
    assert_near(silu(x), wide * sigmoid, dtype)
    assert_near(swiglu(x, other), wide * sigmoid * up, dtype)
    assert np.array_equal(x, before)


def test_numbers_at_the_ends():
    """There are no warnings either."""
    assert silu([-np.inf, -1e30, 0.0, 1e30, np.inf]).tolist() == [0, 0, 0, 1e30, np.inf]
    assert np.isnan(silu(np.nan))
    assert rms_norm(np.zeros(4), eps=0).tolist() != [0, 0, 0, 0]  # 0 / 0
    assert rms_norm(np.zeros(4)).tolist() == [0, 0, 0, 0]
    assert rms_norm(np.full(4, 300, np.float16)).tolist() == [1, 1, 1, 1]  # 300**2 > 65504
    assert rms_norm(np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert rms_norm(np.zeros((3, 0), np.float32)).shape == (3, 0)
    for dtype, sizes in ((np.float32, (1e-30, 1e30)), (np.float64, (1e-300, 1e300))):
        for size in sizes:
            near_one = rms_norm(np.full(4, size, dtype), eps=0)
            assert np.allclose(near_one, 1, rtol=4 * np.finfo(dtype).eps, atol=0)
    assert np.allclose(rms_norm([1e-300, -2e-300], eps=1e-6), [1e-297, -2e-297], rtol=1e-15, atol=0)
    assert rms_norm([np.inf, 1]).tolist()[1] == 0
    gate = np.float16(1.2345)
    exact = float(gate) / (1 + np.exp(-float(gate)))
    assert abs(swiglu(gate, np.float32(1)) - exact) < 1e-7
    assert swiglu(1, 2).dtype == np.float64


def likely(logits, temperature, top_k, top_p):
    """Return the probabilities of all tokens, by the definitions."""
    chances = np.exp((logits - logits.max()) / temperature)
    if top_k is not None:
        chances[chances < np.sort(chances)[::-1][min(top_k, len(chances)) - 1]] = 0
    chances /= chances.sum()
    if top_p is not None:
        total = 0.0
        for token in np.argsort(-chances, kind="stable"):
            if total >= top_p:
                chances[token] = 0
            total += chances[token]
    return chances / chances.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, None, None),
        (2.0, 3, None),
        (1.0, 1, None),
        (1.0, None, 0.6),
        (1.0, None, 1e-9),
        (1.3, 4, 0.7),
        (1e-9, None, None),
    ],
)
def test_tokens_come_as_often_as_they_should(temperature, top_k, top_p):
    logits = np.array([0.3, 2.0, -np.inf, 1.2, 0.3, 1.9, -3.0, 2.0])
    draws = 4_000
    expected = likely(logits, temperature, top_k, top_p)
    options = {"top_k": top_k, "top_p": top_p}
    tokens = sample(np.broadcast_to(logits, (draws, 8)), temperature, **options, rng=0)
    assert tokens.dtype == np.int64
    counts = np.bincount(tokens, minlength=8)
    assert (counts[expected == 0] == 0).all()
    spread = np.sqrt(draws * expected * (1 - expected))
    assert (np.abs(counts - draws * expected) <= 4.5 * spread + 1e-9).all()


def test_a_row_has_one_number_of_the_stream():
    logits = normal(0, 2, 3, 50, dtype=np.float32)
    together = sample(logits, top_p=0.9, rng=1)
    rng = np.random.default_rng(1)
    apart = [sample(row, top_p=0.9, rng=rng) for row in logits.reshape(6, 50)]
    assert together.shape == (2, 3)
    assert together.ravel().tolist() == apart
    assert type(apart[0]) is int
    assert sample(logits, 0).tolist() == logits.argmax(-1).tolist()
    assert sample(np.zeros((0, 5))).shape == (0,)
    assert sample([1, 3, 3], temperature=0) == 1
