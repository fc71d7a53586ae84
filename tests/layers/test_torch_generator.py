"""Test TorchGenerator against numbers of PyTorch 2.13, and against PyTorch if it is installed."""

import copy
import math

import numpy as np
import pytest

import regard
from reference import assert_same_bits

BOUND = 0.57735026


def assert_close(actual, wanted, dtype, eps):
    """Allow `eps` roundings of the largest value."""
    wanted = np.array(wanted, dtype)
    assert actual.dtype == dtype
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=eps * np.spacing(np.abs(wanted).max()))


@pytest.mark.parametrize(
    ("seed", "single", "double"),
    [
        (0, [0.4962566, 0.7682218, 0.08847743], [0.0562441839043476, 0.07262971157225484]),
        (123, [0.29611194, 0.5165623, 0.25167072], [0.5084544309861445, 0.9321758991788698]),
        (-(2**63), [0.4962566, 0.7682218, 0.08847743], [0.0562441839043476, 0.07262971157225484]),
        (2**64 - 1, [0.9937994, 0.57130635, 0.57000804], [0.39603032542958383, 0.9060367488878238]),
    ],
)
def test_rand(seed, single, double):
    generator = regard.TorchGenerator(seed)
    assert_same_bits(generator.rand(3), np.array(single, np.float32))
    assert_same_bits(generator.rand(2, dtype=np.float64), np.array(double))


LONG = {
    (np.float32, 17): [
        *(-0.8201345, -0.32456663, 1.9263681, -0.33001173, 0.19844505, 0.78207266),
        *(1.0391077, -0.7245107, -0.8489086, -0.21534152, -1.8157287, -0.34524196),
        *(-2.061478, 0.6741007, -1.3233458, -1.359769, -0.8667016),
    ],
    (np.float64, 17): [
        *(0.06626753966449943, -0.29104147095938915, 0.45801695358702993, 1.6932749764073567),
        *(1.457454937932726, 1.932214860010293, -1.4418139927522924, 0.7277603478716976),
        *(-1.3131496578292892, -2.42925190670235, -0.15213162349367035, -2.6909171061771864),
        *(1.7421050311620636, -0.523961020712386, -0.28387899021947915, 0.45257550210102954),
        -1.6677291342328766,
    ],
}


@pytest.mark.parametrize(("dtype", "size"), LONG)
def test_randn_of_many_elements(dtype, size):
    actual = regard.TorchGenerator(7).randn(size, dtype=dtype)
    assert_close(actual, LONG[dtype, size], dtype, eps=4)


def test_the_second_of_a_pair_waits_for_the_next_short_randn():
    generator = regard.TorchGenerator(1)
    drawn = [
        *(generator.randn(3), generator.rand(2), generator.randn(16)[:2]),
        *(generator.randn(2, dtype=np.float64), generator.randn(0), generator.randn(1)),
        generator.randn(),
    ]
    wanted = [
        [0.66135216, 0.2669241, 0.06167726],
        [0.5695085, 0.43877792],
        [1.3168308, -0.681752],
        [0.6213173286854216, -0.32450883297939187],
        [],
        [0.28786945],
        1.05787,
    ]
    for actual, values in zip(drawn, wanted, strict=True):
        np.testing.assert_allclose(actual, values, rtol=2e-7)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "wanted"),
    [
        (-1, 3, np.float32, [2.3210075, -0.49555635, 2.6298788, 2.2797081]),
        (-BOUND, BOUND, np.float32, [0.381342, -0.4317299, 0.47050548, 0.3694199]),
        (np.float32(5), 5, np.float32, [5, 5, 5, 5]),
        (1, 1 + 2**-23, np.float32, [1, 1, 1, 1]),
        (-1, 3, np.float64, [1.5680600265123763, 0.039031660705261206]),
        (-BOUND, BOUND, np.float64, [0.16398480200126367, -0.2774076602717928]),
        (1e300, 1e300, np.float64, [1e300, 1e300]),
    ],
)
def test_uniform(low, high, dtype, wanted):
    actual = regard.TorchGenerator(5).uniform(low, high, len(wanted), dtype)
    assert_same_bits(actual, np.array(wanted, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d_in", [1, 3, 48])
def test_linear_is_uniform_within_the_root_of_the_inputs(d_in, dtype):
    """As PyTorch computes its bound: 1 / sqrt(d_in), for weights by way of sqrt(5) and sqrt(3)."""
    weight, bias = regard.TorchGenerator(5).linear(d_in, 2, True, dtype)
    generator = regard.TorchGenerator(5)
    of_weight = math.sqrt(3) * (math.sqrt(2 / (1 + 5)) / math.sqrt(d_in))
    of_bias = 1 / math.sqrt(d_in)
    assert_same_bits(weight, generator.uniform(-of_weight, of_weight, (2, d_in), dtype))
    assert_same_bits(bias, generator.uniform(-of_bias, of_bias, 2, dtype))


def test_copies_go_on_alike_and_global_state_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    generator = regard.TorchGenerator(9)
    generator.randn(3)
    twin = copy.deepcopy(generator)
    assert_same_bits(generator.randn(5), twin.randn(5))
    assert_same_bits(generator.randn(20), twin.randn(20))
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert repr(generator) == "TorchGenerator(9)"


def test_empty_shapes_and_refused_calls_draw_nothing():
    generator = regard.TorchGenerator(0)
    assert generator.rand(2, 0).shape == generator.randn([2, 0]).shape == (2, 0)
    for call in (
        lambda: generator.rand((2, -1)),
        lambda: generator.randn(3, dtype=int),
        lambda: generator.uniform(-3e38, 3e38),
        lambda: generator.linear(3, -2),
    ):
        with pytest.raises((TypeError, ValueError), match="must be"):
            call()
    assert_same_bits(generator.rand(3), regard.TorchGenerator(0).rand(3))


SHAPES = [(), (1,), (2, 3), (0,), (15,), (16,), (3, 5, 7), (47,), (64,), (13, 77)]


@pytest.mark.parametrize("seed", [0, 123, 789, -5, 2**40 + 1])
def test_any_order_of_calls_against_pytorch(seed):
    """Uniforms agree bit for bit, normals up to the rounding of log, sin and cos.

    From 16 elements on, `randn` may differ from PyTorch by a few roundings of the largest value.
    """
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("PyTorch's kernels here have no fused multiply-add")
    types = {np.float32: torch.float32, np.float64: torch.float64}
    order = np.random.default_rng(abs(seed))
    generator = regard.TorchGenerator(seed)
    torch.manual_seed(seed)
    for _ in range(60):
        shape = SHAPES[order.integers(len(SHAPES))]
        dtype = (np.float32, np.float64)[order.integers(2)]
        kind = ("rand", "randn", "uniform", "linear")[order.integers(4)]
        eps = 0
        if kind == "rand":
            pairs = [(generator.rand(shape, dtype=dtype), torch.rand(shape, dtype=types[dtype]))]
        elif kind == "randn":
            pairs = [(generator.randn(shape, dtype=dtype), torch.randn(shape, dtype=types[dtype]))]
            eps = 4 if math.prod(shape) >= 16 else 1
        elif kind == "uniform":
            low, high = sorted(order.uniform(-9, 9, 2).tolist())
            theirs = torch.empty(shape, dtype=types[dtype]).uniform_(low, high)
            pairs = [(generator.uniform(low, high, shape, dtype), theirs)]
        else:
            d_in, d_out = order.integers(1, 90, 2).tolist()
            layer = torch.nn.Linear(d_in, d_out, dtype=types[dtype])
            theirs = (layer.weight.detach(), layer.bias.detach())
            pairs = zip(generator.linear(d_in, d_out, True, dtype), theirs, strict=True)
        for ours, theirs in pairs:
            wanted = theirs.numpy()
            if eps and wanted.size:
                assert_close(ours, wanted, dtype, eps)
            else:
                assert_same_bits(ours, wanted)
