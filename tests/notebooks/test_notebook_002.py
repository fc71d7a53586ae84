"""Notebook 002, to the digits that it prints: embeddings, positions, and a sentence's scores."""

import functools

import numpy as np
import pytest
from printed import assert_fused_is_stages, assert_prints

import regard


@functools.cache
def amazing():
    """Return the embeddings of the three words, and the weights that are drawn after them."""
    random = np.random.RandomState(42)
    embeddings = np.array([random.rand(8) for _ in range(3)])
    return embeddings, *(random.rand(8, 8) for _ in range(3))


def amazing_inputs():
    return amazing()[0] + regard.positional.sinusoidal(3, 8)


def amazing_heads():
    return [regard.matmul(amazing_inputs(), weight) for weight in amazing()[1:]]


def test_002_stages(target):
    query, key, value = amazing_heads()
    scores = regard.matmul(query, key.T)
    assert_prints(
        scores,
        """[[119.7964 141.6248 114.3513]
            [121.1941 143.8183 116.3466]
            [ 93.9901 111.9071  90.0504]]""",
    )
    scaled = regard.scale(scores, 1 / np.sqrt(8))
    assert_prints(
        scaled,
        """[[42.3544 50.0719 40.4293]
            [42.8486 50.8474 41.1347]
            [33.2305 39.5651 31.8376]]""",
    )
    with np.errstate(divide="ignore"):
        mask = np.log(np.tri(3))
    masked = regard.apply_mask(scaled, mask)
    assert_prints(
        masked,
        """[[42.3544    -inf    -inf]
            [42.8486 50.8474    -inf]
            [33.2305 39.5651 31.8376]]""",
    )
    weights = regard.softmax(masked)
    assert_prints(weights, AMAZING_WEIGHTS)
    assert_prints(regard.matmul(weights, value), AMAZING_OUTPUT)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"mask": regard.masks.causal(3)}])
def test_002_attention(options, target):
    output, weights = assert_fused_is_stages(*amazing_heads(), **options)
    assert_prints(weights, AMAZING_WEIGHTS)
    assert_prints(output, AMAZING_OUTPUT)


def test_002_unscaled_scores_do_not_overflow(target):
    """One of the scores is 143.8, whose exponential is too large for float32."""
    heads = [x.astype(np.float32) for x in amazing_heads()]
    output, weights = assert_fused_is_stages(*heads, scale=1.0)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)


AMAZING_WEIGHTS = """
    [1.     0.     0.    ]
    [0.0003 0.9997 0.    ]
    [0.0018 0.9978 0.0004]
"""
AMAZING_OUTPUT = """
    [3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
    [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
    [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]
"""
