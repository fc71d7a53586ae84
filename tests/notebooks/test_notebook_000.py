"""Notebook 000, to the digits that it prints: the context vector of a token."""

import numpy as np
import pytest
from printed import assert_fused_is_stages, assert_prints

import regard

DREAM = np.array(
    [
        [0.72, 0.45, 0.31],
        [0.75, 0.20, 0.55],
        [0.30, 0.80, 0.40],
        [0.85, 0.35, 0.60],
        [0.55, 0.15, 0.75],
        [0.25, 0.20, 0.85],
    ],
    np.float32,
)


def dream():
    """Return queries, keys and values of the sentence."""
    generator = regard.TorchGenerator(123)
    return [regard.matmul(DREAM, generator.randn(3, 2)) for _ in range(3)]


def test_000_weights():
    generator = regard.TorchGenerator(123)
    assert_prints(
        generator.randn(3, 2),
        """[[-0.1115,  0.1204],
            [-0.3696, -0.2404],
            [-1.1969,  0.2093]]""",
    )
    assert_prints(
        generator.randn(3, 2),
        """[[-0.9724, -0.7550],
            [ 0.3239, -0.1085],
            [ 0.2103, -0.3908]]""",
    )
    assert_prints(
        generator.randn(3, 2),
        """[[ 0.2350,  0.6653],
            [ 0.3528,  0.9728],
            [-0.0386, -0.8861]]""",
    )


def test_000_query_key_and_value_of_token_2(target):
    generator = regard.TorchGenerator(123)
    for text in ("[-0.8158,  0.1573]", "[-0.5488, -0.8030]", "[0.2256, 0.2062]"):
        assert_prints(regard.matmul(DREAM[1], generator.randn(3, 2)), text)


def test_000_queries_keys_and_values(target):
    queries, keys, values = dream()
    # The notebook ran on a machine without fused multiply-add. The last of these numbers is a small
    # difference of larger terms, so this shows in its fourth digit, in PyTorch as well.
    terms = np.abs(DREAM) @ np.abs(regard.TorchGenerator(123).randn(6, 2)[3:])
    assert_prints(
        keys,
        """[[-4.8914e-01, -7.1363e-01],
            [-5.4880e-01, -8.0295e-01],
            [ 5.1548e-02, -4.6967e-01],
            [-5.8694e-01, -9.1428e-01],
            [-3.2846e-01, -7.2469e-01],
            [ 4.7331e-04, -5.4268e-01]]""",
        rounding=np.finfo(np.float32).eps * terms,
    )
    assert_prints(
        values,
        """[[ 0.3160,  0.6421],
            [ 0.2256,  0.2062],
            [ 0.3373,  0.6234],
            [ 0.3000,  0.3743],
            [ 0.1532, -0.1528],
            [ 0.0965, -0.3923]]""",
    )
    assert_prints(
        queries,
        """[[-0.6176,  0.0433],
            [-0.8158,  0.1573],
            [-0.8079, -0.0725],
            [-0.9423,  0.1437],
            [-1.0144,  0.1871],
            [-1.1192,  0.1599]]""",
    )


def test_000_scores(target):
    queries, keys, _ = dream()
    own = float(regard.matmul(queries[1], keys[1]))
    assert abs(own - 0.3214397430419922) <= 4 * 2.0**-25, "four roundings"
    row = "[ 0.2868,  0.3214, -0.1159,  0.3350,  0.1540, -0.0857]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    assert_prints(
        regard.matmul(queries, keys.T),
        """[[ 0.2712,  0.3042, -0.0522,  0.3229,  0.1715, -0.0238],
            [ 0.2868,  0.3214, -0.1159,  0.3350,  0.1540, -0.0857],
            [ 0.4469,  0.5016, -0.0076,  0.5405,  0.3179,  0.0390],
            [ 0.3583,  0.4017, -0.1161,  0.4217,  0.2053, -0.0784],
            [ 0.3627,  0.4065, -0.1402,  0.4244,  0.1976, -0.1020],
            [ 0.4333,  0.4858, -0.1328,  0.5107,  0.2517, -0.0873]]""",
    )


def test_000_context_vector_of_token_2(target):
    queries, keys, values = dream()
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1821, 0.1867, 0.1370, 0.1885, 0.1658, 0.1400]")
    assert_prints(output[0], "[0.2413, 0.2311]")
    whole_output, whole_weights = assert_fused_is_stages(queries, keys, values)
    assert np.array_equal(whole_output[1], output[0])
    assert np.array_equal(whole_weights[1], weights[0])


def test_000_all_queries_with_the_scale_that_the_loop_left(target):
    """The notebook computes this table with d_k = 256, the last value of an earlier loop."""
    output, weights = assert_fused_is_stages(*dream(), scale=1 / 16)
    assert_prints(
        weights,
        """[[0.1678, 0.1681, 0.1644, 0.1683, 0.1667, 0.1647],
            [0.1681, 0.1685, 0.1639, 0.1686, 0.1667, 0.1642],
            [0.1681, 0.1687, 0.1634, 0.1691, 0.1668, 0.1639],
            [0.1683, 0.1688, 0.1634, 0.1690, 0.1667, 0.1638],
            [0.1684, 0.1689, 0.1632, 0.1691, 0.1667, 0.1636],
            [0.1686, 0.1692, 0.1628, 0.1694, 0.1667, 0.1632]]""",
    )
    assert_prints(
        output,
        """[[0.2383, 0.2178],
            [0.2384, 0.2181],
            [0.2384, 0.2181],
            [0.2384, 0.2183],
            [0.2384, 0.2184],
            [0.2385, 0.2185]]""",
    )


@pytest.mark.parametrize(
    ("factor", "wanted"),
    [
        (1, "[0.1925, 0.1426, 0.2351, 0.1426, 0.2872]"),
        (8, "[0.0326, 0.0030, 0.1615, 0.0030, 0.8000]"),
    ],
)
def test_000_softmax_peaks_with_the_scale_of_its_input(factor, wanted, dtype, target):
    x = np.array([0.1, -0.2, 0.3, -0.2, 0.5], dtype)
    assert_prints(regard.softmax(regard.scale(x, factor)), wanted)


@pytest.mark.slow
def test_000_scaling_brings_the_variance_of_scores_to_1(target):
    """The samples come from the stream that produced the weights. The notebook does this up to
    d_k = 256."""
    generator = regard.TorchGenerator(123)
    for _ in range(3):
        generator.randn(3, 2)
    queries, keys = generator.randn(10_000, 8), generator.randn(10_000, 8)
    totals = np.zeros(2)
    for first in range(0, 10_000, 1000):
        scores = regard.matmul(queries[first : first + 1000], keys.T).astype(np.float64)
        totals += scores.sum(), np.square(scores).sum()
    mean, square = totals / 1e8
    variance = np.array([square - mean**2, (square - mean**2) / 8])
    # PyTorch rounds the variance to float32 before printing it.
    assert_prints(variance, "8.1428, 1.0179", rounding=np.spacing(np.float32(8)))


def test_000_class(target):
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(123))
    assert_prints(
        layer(DREAM),
        """[[-0.5282, -0.0051],
            [-0.5288, -0.0036],
            [-0.5276, -0.0066],
            [-0.5289, -0.0040],
            [-0.5289, -0.0032],
            [-0.5287, -0.0033]]""",
    )
    names = {"W_query.weight": "W_q.weight", "W_key.weight": "W_k.weight"}
    names["W_value.weight"] = "W_v.weight"
    state = {names[key]: array for key, array in layer.state_dict().items()}
    other = regard.SelfAttention(3, 2, rng=0)
    other.load_state_dict(state)
    assert np.array_equal(other(DREAM), layer(DREAM))
