"""Test self-attention as a layer: parameters, axes, states and errors."""

import math

import numpy as np
import pytest

import regard
from reference import assert_same_bits

INITS = ["linear", "uniform", "normal"]
NAMES = ("query", "key", "value")


def normal(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def by_hand(layer, x, mask=None, *, is_causal=False, init="linear"):
    """Compute the layer's formula in float64; `mask` is bool."""
    x = np.asarray(x, np.float64)
    projected = []
    for name in NAMES:
        weight = getattr(layer, f"W_{name}").astype(np.float64)
        bias = getattr(layer, f"b_{name}")
        projected.append(x @ (weight.T if init == "linear" else weight))
        if bias is not None:
            projected[-1] += bias
    query, key, value = projected
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    seen = np.broadcast_to(True if mask is None else mask, scores.shape).copy()
    if is_causal:
        seen &= np.tri(scores.shape[-1], dtype=bool)
    terms = np.where(seen, np.exp(scores - scores.max(axis=-1, keepdims=True)), 0)
    weights = terms / terms.sum(axis=-1, keepdims=True)
    return weights @ value, weights


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(6, 3), (1, 3), (4, 6, 3), (2, 4, 6, 3), (1, 2, 3, 5, 3)])
@pytest.mark.parametrize(("init", "qkv_bias"), [(i, False) for i in INITS] + [("linear", True)])
def test_layer_is_its_formula(init, qkv_bias, shape, is_causal, dtype, target):
    layer = regard.SelfAttention(3, 5, init=init, qkv_bias=qkv_bias, rng=1, dtype=dtype)
    x = normal(shape, dtype)
    output, weights = layer(x, is_causal=is_causal, return_weights=True)
    wanted = by_hand(layer, x, is_causal=is_causal, init=init)
    assert output.shape == (*shape[:-1], 5)
    assert weights.shape == (*shape[:-1], shape[-2])
    for actual, exact in zip((output, weights), wanted, strict=True):
        assert actual.dtype == dtype
        np.testing.assert_allclose(actual, exact, rtol=0, atol=300 * np.finfo(dtype).eps)
    assert_same_bits(layer(x, is_causal=is_causal), output)


@pytest.mark.parametrize(
    ("x_shape", "mask_shape"),
    [
        ((6, 3), (6, 6)),
        ((6, 3), (1, 6)),
        ((6, 3), (6,)),
        ((6, 3), ()),
        ((4, 6, 3), (6, 6)),
        ((4, 6, 3), (4, 6, 6)),
        ((4, 6, 3), (4, 1, 6)),
        ((4, 6, 3), (1, 6, 6)),
        ((6, 6, 3), (6, 6, 6)),
        ((2, 4, 6, 3), (4, 6, 6)),
        ((2, 4, 6, 3), (2, 1, 1, 6)),
    ],
)
def test_mask_has_no_heads_axis(x_shape, mask_shape, target):
    layer = regard.SelfAttention(3, 2, rng=1)
    x = normal(x_shape)
    mask = np.asarray(np.random.default_rng(3).random(mask_shape) < 0.6)
    mask = mask | (np.arange(mask.shape[-1]) == 0) if mask.ndim else np.array(True)
    output, weights = layer(x, mask, return_weights=True)
    wanted = by_hand(layer, x, mask)
    np.testing.assert_allclose(output, wanted[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(weights, wanted[1], rtol=0, atol=1e-5)
    assert not weights[~np.broadcast_to(mask, weights.shape)].any()
    additive = regard.masks.as_additive(mask)
    np.testing.assert_allclose(layer(x, additive), output, rtol=0, atol=1e-6)
    np.testing.assert_allclose(layer(x, additive.tolist()), output, rtol=0, atol=1e-6)


def test_batch_entries_do_not_meet(target):
    layer = regard.SelfAttention(3, 2, rng=1)
    x = normal((5, 7, 3))
    alone = np.stack([layer(entry) for entry in x])
    assert_same_bits(layer(x), alone)
    assert_same_bits(layer(x.reshape(5, 1, 7, 3))[:, 0], alone)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads, target):
    layer = regard.SelfAttention(16, 8, qkv_bias=True, rng=1)
    x = normal((3, 40, 16))
    assert_same_bits(layer(x, is_causal=True, threads=threads), layer(x, is_causal=True))


@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3), (2, 0, 3)])
def test_empty_sequences_and_batches(shape, target):
    output, weights = regard.SelfAttention(3, 2, rng=0)(np.zeros(shape), return_weights=True)
    assert output.shape == (*shape[:-1], 2)
    assert weights.shape == (*shape[:-1], shape[-2])


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.tolist(),
        lambda x: x.astype(np.int8),
        lambda x: x.astype(np.uint64),
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(">f4"),
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    ],
)
def test_x_is_converted_to_the_layers_dtype(convert, dtype, target):
    layer = regard.SelfAttention(3, 2, rng=0, dtype=dtype)
    x = np.arange(12.0, dtype=dtype).reshape(4, 3)
    output = layer(convert(x))
    assert output.dtype == dtype
    assert_same_bits(output, layer(x))


def test_x_is_left_alone(target):
    x = normal((4, 3))
    before = x.copy()
    x.flags.writeable = False
    regard.SelfAttention(3, 2, rng=0, qkv_bias=True)(x)
    assert_same_bits(x, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_are_query_key_value_each_weight_before_its_bias(dtype):
    generator = regard.TorchGenerator(5)
    layer = regard.SelfAttention(
        3, 2, qkv_bias=True, rng=regard.TorchGenerator(5), dtype=np.dtype(dtype)
    )
    for name in NAMES:
        weight, bias = generator.linear(3, 2, True, dtype)
        assert_same_bits(getattr(layer, f"W_{name}"), weight)
        assert_same_bits(getattr(layer, f"b_{name}"), bias)
    for init, method in (("uniform", "rand"), ("normal", "randn")):
        generator = regard.TorchGenerator(5)
        layer = regard.SelfAttention(3, 2, init=init, rng=regard.TorchGenerator(5), dtype=dtype)
        for name in NAMES:
            drawn = getattr(generator, method)(3, 2, dtype=dtype)
            assert_same_bits(getattr(layer, f"W_{name}"), drawn)
            assert getattr(layer, f"b_{name}") is None


@pytest.mark.parametrize(
    ("init", "low", "high", "mean", "std"),
    [
        ("linear", -1 / 20, 1 / 20, 0, 1 / 20 / math.sqrt(3)),
        ("uniform", 0, 1, 0.5, 1 / math.sqrt(12)),
        ("normal", -6, 6, 0, 1),
    ],
)
@pytest.mark.parametrize("torch_stream", [False, True])
def test_distributions_are_alike_for_both_generators(init, low, high, mean, std, torch_stream):
    rng = regard.TorchGenerator(0) if torch_stream else np.random.default_rng(0)
    bias = init == "linear"
    layer = regard.SelfAttention(400, 300, init=init, qkv_bias=bias, rng=rng)
    for parameter in layer.state_dict().values():
        assert parameter.dtype == np.float32
        assert low <= parameter.min() < parameter.max() <= high
        error = std / math.sqrt(parameter.size)
        assert abs(parameter.mean() - mean) < 5 * error
        assert abs(parameter.std() - std) < 5 * error


def test_numpy_generators():
    def weights(rng):
        return np.stack(list(regard.SelfAttention(3, 2, rng=rng).state_dict().values()))

    assert_same_bits(weights(7), weights(np.random.default_rng(7)))
    assert_same_bits(weights(np.int64(7)), weights(7))
    assert not np.array_equal(weights(7), weights(8))
    assert not np.array_equal(weights(None), weights(None))
    generator = np.random.default_rng(7)
    assert not np.array_equal(weights(generator), weights(generator))


@pytest.mark.parametrize(
    ("init", "qkv_bias", "wanted"),
    [
        ("linear", False, {f"W_{n}.weight": (2, 3) for n in NAMES}),
        (
            "linear",
            True,
            {f"W_{n}.{p}": s for n in NAMES for p, s in (("weight", (2, 3)), ("bias", (2,)))},
        ),
        ("uniform", False, {f"W_{n}": (3, 2) for n in NAMES}),
        ("normal", False, {f"W_{n}": (3, 2) for n in NAMES}),
    ],
)
def test_states_go_round(init, qkv_bias, wanted, target):
    layer, other = (
        regard.SelfAttention(3, 2, init=init, qkv_bias=qkv_bias, rng=seed) for seed in (1, 2)
    )
    state = layer.state_dict()
    assert [(key, array.shape) for key, array in state.items()] == list(wanted.items())
    other.load_state_dict(state)
    x = normal((6, 3))
    output = layer(x)
    assert_same_bits(other(x), output)
    for array in state.values():
        array[:] = 0
    assert_same_bits(other(x), output)
    assert_same_bits(layer(x), output)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_loaded_arrays_are_converted(dtype):
    layer = regard.SelfAttention(3, 2, init="uniform", rng=1)
    state = {f"W_{name}": np.full((3, 2), 0.1, dtype) for name in NAMES}
    state["W_value"] = state["W_value"].tolist()
    layer.load_state_dict(state)
    for name in NAMES:
        loaded = getattr(layer, f"W_{name}")
        assert_same_bits(loaded, np.asarray(state[f"W_{name}"]).astype(np.float32))
        assert loaded.flags.owndata


@pytest.mark.parametrize("init", INITS)
def test_short_names_load_too(init):
    layer, other = (regard.SelfAttention(3, 2, init=init, rng=seed) for seed in (1, 2))
    short = {"query": "q", "key": "k", "value": "v"}
    state = layer.state_dict()
    for long, letter in short.items():
        state = {key.replace(long, letter): array for key, array in state.items()}
    assert set(state) != set(layer.state_dict())
    other.load_state_dict(state)
    for name in NAMES:
        assert_same_bits(getattr(other, f"W_{name}"), getattr(layer, f"W_{name}"))


def weights_of(**changes):
    state = {f"W_{name}.weight": np.ones((2, 3), np.float32) for name in NAMES}
    for key, value in changes.items():
        if value is None:
            del state[key + ".weight"]
        else:
            state[key] = value
    return state


KEYS = "state must have the keys W_query.weight, W_key.weight, W_value.weight"


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (
            weights_of(W_key=None),
            ValueError,
            f"{KEYS}, got missing: W_key.weight, unexpected: none",
        ),
        (
            weights_of(W_key=None, W_value=None) | {"W_k": 0, "W_query.bias": 0},
            ValueError,
            f"{KEYS}, got missing: W_key.weight, W_value.weight, unexpected: W_k, W_query.bias",
        ),
        (weights_of() | {3: 0}, ValueError, f"{KEYS}, got missing: none, unexpected: 3"),
        (
            weights_of() | {"W_q.weight": np.ones((2, 3))},
            ValueError,
            "state must have W_query.weight once, got W_q.weight as well",
        ),
        (
            weights_of() | {"W_value.weight": np.ones((3, 2))},
            ValueError,
            "W_value.weight must have shape (2, 3), got (3, 2)",
        ),
        (
            weights_of() | {"W_value.weight": np.ones((2, 3), int)},
            TypeError,
            "W_value.weight must be floating-point, got int64",
        ),
        (
            weights_of() | {"W_value.weight": None},
            TypeError,
            "W_value.weight must be an array, got None",
        ),
        ([("W_query.weight", 1)], TypeError, "state must be a mapping, got list"),
    ],
)
def test_nothing_is_half_loaded(state, error, message):
    layer = regard.SelfAttention(3, 2, rng=1)
    before = layer.state_dict()
    with pytest.raises(error) as raised:
        layer.load_state_dict(state)
    assert str(raised.value) == message
    for key, array in layer.state_dict().items():
        assert_same_bits(array, before[key])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"d_in": 0}, ValueError, "d_in must be at least 1, got 0"),
        ({"d_in": 3.0}, TypeError, "d_in must be an int, got float"),
        ({"d_out": -1}, ValueError, "d_out must be at least 1, got -1"),
        ({"d_out": True}, TypeError, "d_out must be an int, got bool"),
        ({"qkv_bias": 1}, TypeError, "qkv_bias must be True or False, got int"),
        (
            {"init": "xavier"},
            ValueError,
            "init must be 'linear', 'uniform' or 'normal', got 'xavier'",
        ),
        ({"init": None}, ValueError, "init must be 'linear', 'uniform' or 'normal', got None"),
        (
            {"init": "uniform", "qkv_bias": True},
            ValueError,
            "qkv_bias needs init='linear', got init='uniform'",
        ),
        ({"rng": -1}, ValueError, "rng must be at least 0, got -1"),
        (
            {"rng": "seed"},
            TypeError,
            "rng must be a numpy.random.Generator, a TorchGenerator, an int or None, got str",
        ),
        ({"rng": True}, TypeError, "rng must be an int, got bool"),
        ({"dtype": np.float16}, TypeError, "dtype must be float32 or float64, got float16"),
        ({"dtype": int}, TypeError, "dtype must be float32 or float64, got int64"),
    ],
)
def test_construction_errors(arguments, error, message):
    with pytest.raises(error) as raised:
        regard.SelfAttention(**({"d_in": 3, "d_out": 2} | arguments))
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("x", "options", "error", "message"),
    [
        (np.zeros((6, 4)), {}, ValueError, "x must have shape (..., seq, 3), got (6, 4)"),
        (np.zeros(3), {}, ValueError, "x must have shape (..., seq, 3), got (3,)"),
        (1.0, {}, ValueError, "x must have shape (..., seq, 3), got ()"),
        (
            np.zeros((6, 3), complex),
            {},
            TypeError,
            "x must be an array of real numbers, got complex128",
        ),
        (np.array([["a"] * 3]), {}, TypeError, "x must be an array of real numbers, got <U1"),
        (
            np.zeros((2, 6, 3)),
            {"mask": np.ones((3, 6, 6), bool)},
            ValueError,
            "mask must broadcast to (2, 6, 6), got shape (3, 6, 6)",
        ),
        (
            np.zeros((6, 3)),
            {"mask": np.ones((1, 6, 6), bool)},
            ValueError,
            "mask must broadcast to (6, 6), got shape (1, 6, 6)",
        ),
        (np.zeros((6, 3)), {"mask": np.ones((6, 6), int)}, TypeError, "mask must be bool"),
        (np.zeros((6, 3)), {"threads": 0}, ValueError, "threads must be"),
        (np.zeros((6, 3)), {"is_causal": "yes"}, TypeError, "is_causal must be"),
    ],
)
def test_call_errors(x, options, error, message):
    with pytest.raises(error) as raised:
        regard.SelfAttention(3, 2, rng=0)(x, **options)
    assert str(raised.value).startswith(message)


def test_representation():
    layer = regard.SelfAttention(3, 2, qkv_bias=True, rng=0, dtype="f8")
    assert repr(layer) == (
        "SelfAttention(d_in=3, d_out=2, qkv_bias=True, init='linear', dtype=float64)"
    )


def test_import_does_not_load_the_random_module(output_of):
    script = """
        import numpy, sys
        before = "numpy.random" in sys.modules
        import regard
        print(("numpy.random" in sys.modules) == before)
    """
    assert output_of(script) == "True"


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_pytorch_states_load(qkv_bias, target):
    torch = pytest.importorskip("torch")

    class Theirs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.W_q = torch.nn.Linear(3, 2, bias=qkv_bias)
            self.W_k = torch.nn.Linear(3, 2, bias=qkv_bias)
            self.W_v = torch.nn.Linear(3, 2, bias=qkv_bias)

    torch.manual_seed(11)
    theirs = Theirs()
    drawn = regard.SelfAttention(3, 2, qkv_bias=qkv_bias, rng=regard.TorchGenerator(11))
    loaded = regard.SelfAttention(3, 2, qkv_bias=qkv_bias)
    loaded.load_state_dict(theirs.state_dict())
    for key, array in drawn.state_dict().items():
        assert_same_bits(array, loaded.state_dict()[key])
    x = normal((4, 6, 3))
    with torch.no_grad():
        projected = [layer(torch.from_numpy(x)) for layer in theirs.children()]
        wanted = torch.nn.functional.scaled_dot_product_attention(*projected, is_causal=True)
    np.testing.assert_allclose(loaded(x, is_causal=True), wanted.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("W_query", np.ones((5, 4)), ValueError, "W_query must have the shape of the parameter"),
        ("W_query", None, TypeError, "W_query must be an array, got None"),
        ("W_query", "text", TypeError, "W_query must be an array of real numbers, got <U4"),
        ("W_key", np.ones((3, 4), complex), TypeError, "W_key must be .* got complex128"),
        ("b_query", np.ones(4), ValueError, "b_query must have the shape of the parameter"),
        ("b_value", None, TypeError, "b_value must be an array, got None"),
    ],
)
def test_attributes_are_checked(name, value, error, message):
    layer = regard.SelfAttention(4, 3, qkv_bias=True, rng=0)
    before = layer.state_dict()
    with pytest.raises(error, match=message):
        setattr(layer, name, value)
    assert all(np.array_equal(array, before[key]) for key, array in layer.state_dict().items())


def test_attributes_are_converted_to_the_type_of_the_layer():
    layer, x = regard.SelfAttention(4, 3, rng=0), np.ones((2, 4), np.float32)
    weight = np.arange(12.0).reshape(3, 4)
    for given in (weight, weight.astype(int), weight.tolist(), weight.astype(">f4")):
        layer.W_query = given
        assert layer.W_query.dtype == np.float32
        assert np.array_equal(layer.state_dict()["W_query.weight"], weight)
        assert layer(x).dtype == np.float32
    layer.b_query = None  # unchanged
    with pytest.raises(ValueError, match="b_query must stay None in a layer without biases"):
        layer.b_query = np.zeros(3)
