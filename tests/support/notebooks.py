"""What notebooks print, read as numbers, and their attention by the four stages.

The texts in the tests are their printed arrays; each starts from the same numbers: PyTorch's random
stream, NumPy's, or what it prints.
"""

import math
import re

import numpy as np

import regard

NUMBER = re.compile(r"[-+]?(?:inf|\d+\.?\d*(?:e[-+]\d+)?)")


def parse(text, shape):
    """The numbers of a printed array and half a unit of their last digit.

    Without exponents all numbers of an array are printed to the same number of decimals, of which
    trailing zeros are left out.
    """
    tokens = NUMBER.findall(text)
    decimals = max(len(token.partition("e")[0].partition(".")[2]) for token in tokens)
    units = [10.0 ** (int(token.partition("e")[2] or 0) - decimals) for token in tokens]
    return np.array(tokens, float).reshape(shape), np.array(units).reshape(shape) / 2


def assert_prints(actual, text, rounding=0.0):
    """Equal to the last digit of `text`, allowing for `rounding` of the numbers it came from."""
    wanted, half = parse(text, np.shape(actual))
    finite = np.isfinite(wanted)
    assert np.array_equal(actual[~finite], wanted[~finite])
    difference = np.abs(np.where(finite, actual, 0.0) - np.where(finite, wanted, 0.0))
    assert (difference <= half * (1 + 1e-6) + rounding).all(), f"{actual}\nis not\n{text}"


def parsed(text, rows):
    return parse(text, (rows, -1))[0]


def stages(query, key, value, mask=None, factor=None):
    """Attention by the four stages, one by one."""
    factor = 1 / math.sqrt(query.shape[-1]) if factor is None else factor
    scores = regard.scale(regard.matmul(query, key.T), factor)
    if mask is not None:
        scores = regard.apply_mask(scores, mask)
    weights = regard.softmax(scores)
    return regard.matmul(weights, value), weights


def assert_fused_is_stages(query, key, value, mask=None, **options):
    """Return output and weights of the fused call, which the stages give too."""
    factor = options.get("scale")
    hidden = regard.masks.causal(len(query)) if options.get("is_causal") else mask
    fused = regard.scaled_dot_product_attention(
        query, key, value, mask, return_weights=True, **options
    )
    # Every stage rounds once more than the fused call; the scores are what the rounding grows with.
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
