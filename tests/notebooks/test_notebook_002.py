"""Notebook 002, to the digits that it prints: embeddings, positions, and a sentence's scores."""

import functools

import numpy as np
import pytest

import regard
from notebooks import assert_fused_is_stages, assert_prints


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


def test_002_embeddings_and_positions():
    assert_prints(amazing()[0][2], "[0.3042 0.5248 0.4319 0.2912 0.6119 0.1395 0.2921 0.3664]")
    assert_prints(
        amazing_inputs(),
        """[[0.3745 1.9507 0.732  1.5987 0.156  1.156  0.0581 1.8662]
            [1.4426 1.2484 0.1204 1.9649 0.8424 1.2123 0.1828 1.1834]
            [1.2135 0.1086 0.6306 1.2713 0.6319 1.1393 0.2941 1.3664]]""",
    )


def test_002_weights():
    _, weight_query, weight_key, _ = amazing()
    assert_prints(
        weight_query,
        """[[0.4561 0.7852 0.1997 0.5142 0.5924 0.0465 0.6075 0.1705]
            [0.0651 0.9489 0.9656 0.8084 0.3046 0.0977 0.6842 0.4402]
            [0.122  0.4952 0.0344 0.9093 0.2588 0.6625 0.3117 0.5201]
            [0.5467 0.1849 0.9696 0.7751 0.9395 0.8948 0.5979 0.9219]
            [0.0885 0.196  0.0452 0.3253 0.3887 0.2713 0.8287 0.3568]
            [0.2809 0.5427 0.1409 0.8022 0.0746 0.9869 0.7722 0.1987]
            [0.0055 0.8155 0.7069 0.729  0.7713 0.074  0.3585 0.1159]
            [0.8631 0.6233 0.3309 0.0636 0.311  0.3252 0.7296 0.6376]]""",
    )
    assert_prints(
        weight_key,
        """[[0.8872 0.4722 0.1196 0.7132 0.7608 0.5613 0.771  0.4938]
            [0.5227 0.4275 0.0254 0.1079 0.0314 0.6364 0.3144 0.5086]
            [0.9076 0.2493 0.4104 0.7556 0.2288 0.077  0.2898 0.1612]
            [0.9297 0.8081 0.6334 0.8715 0.8037 0.1866 0.8926 0.5393]
            [0.8074 0.8961 0.318  0.1101 0.2279 0.4271 0.818  0.8607]
            [0.007  0.5107 0.4174 0.2221 0.1199 0.3376 0.9429 0.3232]
            [0.5188 0.703  0.3636 0.9718 0.9624 0.2518 0.4972 0.3009]
            [0.2848 0.0369 0.6096 0.5027 0.0515 0.2786 0.9083 0.2396]]""",
    )


def test_002_queries_keys_and_values(target):
    query, key, value = amazing_heads()
    assert_prints(
        query,
        """[[3.2106 4.6715 4.3622 4.8134 3.2794 3.9177 5.1507 4.2588]
            [3.2656 4.4498 4.1326 4.8386 4.0389 3.8503 5.5063 3.9866]
            [2.8894 3.4368 2.4507 3.6915 3.0919 3.3843 4.2741 3.1117]]""",
    )
    assert_prints(
        key,
        """[[4.1983 3.3252 3.0982 3.6923 2.1246 2.7978 5.4825 3.1297]
            [4.9891 4.3791 3.06   4.1014 3.3176 3.1249 6.2913 3.8818]
            [3.9476 3.2093 2.8283 3.7569 2.7267 2.1453 5.2656 2.7697]]""",
    )
    assert_prints(
        value,
        """[[3.034  3.6074 5.1513 3.2015 3.5217 3.7557 5.0402 3.6896]
            [3.4629 3.8557 5.9133 3.1644 4.0228 3.9501 4.6531 5.1316]
            [2.5045 2.9097 4.583  2.4956 3.8129 2.7861 3.9781 4.104 ]]""",
    )


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
