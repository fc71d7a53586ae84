"""Compare with the arrays that the notebooks print, and compute attention by the four stages.

The tests contain the printed arrays as text. Each test starts from the numbers of its notebook:
PyTorch's random stream, NumPy's random stream, or printed inputs.
"""

import math
import re

import numpy as np

import regard

# The last numbers that the notebooks print, which need all others.
WITH_16 = """
    [[0.2383, 0.2178], [0.2384, 0.2181], [0.2384, 0.2181],
     [0.2384, 0.2183], [0.2384, 0.2184], [0.2385, 0.2185]]"""
LAYER = """
    [[-0.5282, -0.0051], [-0.5288, -0.0036], [-0.5276, -0.0066],
     [-0.5289, -0.0040], [-0.5289, -0.0032], [-0.5287, -0.0033]]"""
MASKED_WEIGHTS = """
    [[1.        , 0.        , 0.        , 0.        ],
     [0.7649962 , 0.2350038 , 0.        , 0.        ],
     [0.52177556, 0.17977168, 0.29845276, 0.        ],
     [0.08844457, 0.4203686 , 0.04903541, 0.44215143]]"""
AMAZING_WEIGHTS = """
    [1.     0.     0.    ]
    [0.0003 0.9997 0.    ]
    [0.0018 0.9978 0.0004]"""
AMAZING_OUTPUT = """
    [[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
     [3.4628 3.8556 5.9131 3.1644 4.0227 3.95   4.6532 5.1311]
     [3.4618 3.8548 5.9114 3.1642 4.0219 3.9492 4.6535 5.1286]]"""
UNIFORM = """
    [[1.4035, 1.0391], [1.4410, 1.0669], [1.4391, 1.0655],
     [1.3786, 1.0178], [1.3653, 1.0086], [1.4025, 1.0361]]"""
VERSION_2 = """
    [[-0.0739, 0.0713], [-0.0748, 0.0703], [-0.0749, 0.0702],
     [-0.0760, 0.0685], [-0.0763, 0.0679], [-0.0754, 0.0693]]"""

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
