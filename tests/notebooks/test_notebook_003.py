"""Notebook 003, to the digits that it prints: trainable weights, and layers made of them."""

import numpy as np
import pytest
from printed import assert_fused_is_stages, assert_prints

import regard

JOURNEY = np.array(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ],
    np.float32,
)


def test_003_context_vector_of_token_2(target):
    generator = regard.TorchGenerator(123)
    weights = [generator.rand(3, 2) for _ in range(3)]
    assert_prints(regard.matmul(JOURNEY[1], weights[0]), "[0.4306, 1.4551]")
    assert_prints(regard.matmul(JOURNEY[1], weights[1]), "[0.4433, 1.1419]")
    queries, keys, values = (regard.matmul(JOURNEY, weight) for weight in weights)
    assert_prints(regard.matmul(queries[1], keys[1]), "1.8524")
    row = "[1.2705, 1.8524, 1.8111, 1.0795, 0.5577, 1.5440]"
    assert_prints(regard.matmul(queries[1], keys.T), row)
    output, weights = assert_fused_is_stages(queries[1:2], keys, values)
    assert_prints(weights[0], "[0.1500, 0.2264, 0.2199, 0.1311, 0.0906, 0.1820]")
    assert_prints(output[0], "[0.3061, 0.8210]")
    whole_output, whole_weights = assert_fused_is_stages(queries, keys, values)
    assert np.array_equal(whole_output[1], output[0])
    assert np.array_equal(whole_weights[1], weights[0])


def test_003_version_1_goes_on_with_the_stream(target):
    generator = regard.TorchGenerator(123)
    for _ in range(3):
        generator.rand(3, 2)
    layer = regard.SelfAttention(3, 2, init="uniform", rng=generator)
    assert_prints(
        layer(JOURNEY),
        """[[1.4035, 1.0391],
            [1.4410, 1.0669],
            [1.4391, 1.0655],
            [1.3786, 1.0178],
            [1.3653, 1.0086],
            [1.4025, 1.0361]]""",
    )


def test_003_version_2(target):
    layer = regard.SelfAttention(3, 2, rng=regard.TorchGenerator(789))
    assert_prints(
        layer(JOURNEY),
        """[[-0.0739,  0.0713],
            [-0.0748,  0.0703],
            [-0.0749,  0.0702],
            [-0.0760,  0.0685],
            [-0.0763,  0.0679],
            [-0.0754,  0.0693]]""",
    )


@pytest.mark.parametrize("init", ["linear", "uniform", "normal"])
def test_a_layer_is_the_stages(init, target):
    layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(123))
    weights = layer.state_dict().values()
    heads = [regard.matmul(JOURNEY, w.T if init == "linear" else w) for w in weights]
    wanted = assert_fused_is_stages(*heads)
    for actual, exact in zip(layer(JOURNEY, return_weights=True), wanted, strict=True):
        assert np.array_equal(actual, exact)
