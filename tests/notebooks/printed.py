"""Compare with the arrays that the notebooks print, and compute attention by the four stages.

The tests contain the printed arrays as text. Each test starts from the numbers of its notebook:
PyTorch's random stream, NumPy's random stream, or printed inputs.
"""

import math
import re

import numpy as np

import regard

NUMBER = re.compile(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]\d+)?)")


def parse(text, shape):
    """Return the numbers of a printed array, and half a unit of their last digits.

    Without exponents, all numbers of an array are printed to the same number of decimals, and
    trailing zeros are left out.
    """
    tokens = NUMBER.findall(text)
    decimals = max(len(token.partition("e")[0].partition(".")[2]) for token in tokens)
    units = [10.0 ** (int(token.partition("e")[2] or 0) - decimals) for token in tokens]
    return np.array(tokens, float).reshape(shape), np.array(units).reshape(shape) / 2


def assert_prints(actual, text, rounding=0.0):
    """Compare to the last digit of `text`, with an allowance for `rounding` of the inputs."""
    wanted, half = parse(text, np.shape(actual))
    finite = np.isfinite(wanted)
    assert np.array_equal(actual[~finite], wanted[~finite])
    difference = np.abs(np.where(finite, actual, 0.0) - np.where(finite, wanted, 0.0))
    assert (difference <= half * (1 + 1e-6) + rounding).all(), f"{actual}\nis not\n{text}"


def parsed(text, rows):
    return parse(text, (rows, -1))[0]


def stages(query, key, value, mask=None, factor=None):
    """Compute attention by the four stages, one after another."""
    factor = 1 / math.sqrt(query.shape[-1]) if factor is None else factor
    scores = regard.scale(regard.matmul(query, key.T), factor)
    if mask is not None:
        scores = regard.apply_mask(scores, mask)
    weights = regard.softmax(scores)
    return regard.matmul(weights, value), weights


def assert_fused_is_stages(query, key, value, mask=None, **options):
    """Return output and weights of the fused call, which must agree with the stages."""
    factor = options.get("scale")
    hidden = regard.masks.causal(len(query)) if options.get("is_causal") else mask
    fused = regard.scaled_dot_product_attention(
        query, key, value, mask, return_weights=True, **options
    )
    # Every stage rounds once more than the fused call, and the rounding grows with the scores.
    eps = np.finfo(query.dtype).eps
    spread = np.abs(query).sum(axis=-1).max() * np.abs(key).max() / math.sqrt(query.shape[-1])
    for actual, wanted in zip(fused, stages(query, key, value, hidden, factor), strict=True):
        assert actual.dtype == wanted.dtype
        size = max(1, np.abs(wanted).max())
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=(4 + 4 * spread) * eps * size)
        assert_same_zeros(actual, wanted)
    return fused


def assert_same_zeros(actual, wanted):
    assert np.array_equal(actual == 0, wanted == 0)
