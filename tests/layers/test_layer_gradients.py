"""Test the gradients of layers: every option against the derivatives of the layer written out."""

import zlib

import numpy as np
import pytest

import regard
from dense_layers import derivatives, self_attention
from reference import assert_same_bits
from trained_layers import (
    DIM,
    HEADS,
    LAYERS,
    D,
    assert_near,
    assert_same_arrays,
    build,
    check,
    gradients_of,
    many_heads,
    normal,
    one_head,
    output_like,
)

BOTH = [pytest.param("plain", marks=pytest.mark.exhaustive), "everything"]
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3}


@pytest.fixture(params=[one_head, many_heads])
def kind(request):
    """Return either kind of layer."""
    return request.param


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((5, D), marks=pytest.mark.exhaustive),
        (3, 4, D),
        pytest.param((2, 1, 3, D), marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", LAYERS)
def test_self_attention(name, shape):
    check(*build(name), [normal(shape)])


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((2, 3, D), (2, 5, D), None),
        ((2, 3, D), (2, 5, D), (2, 5, D)),
        ((2, 3, D), (1, 5, D), None),
        ((3, D), (2, 5, D), None),
        ((2, 1, 3, D), (3, 5, D), (2, 1, 5, D)),
        ((2, 3, D), (2, 5, 7), None),
        ((2, 3, D), (2, 5, 7), (2, 5, 8)),
        ((2, 3, D), (2, 5, D), (2, 5, 8)),
        ((3, D), (5, 8), (2, 5, D)),
    ],
)
def test_cross_attention(query, key, value):
    name = "biases" if len(query) == 2 else "everything"
    sizes = {"d_key": key[-1], "d_value": (value or key)[-1]}
    shapes = [shape for shape in (query, key, value) if shape]
    inputs = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    check(*build(name, **sizes), inputs)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": np.arange(7) < 4},
        {"mask": normal((3, 1, 4, 7), 3)},
        {"mask": np.where(normal((4, 7), 3) < -1, -np.inf, normal((4, 7), 4))},
        {"mask": (np.arange(7) != np.arange(4)[:, None, None], normal((7,), 5))},
        {"mask": np.zeros((4, 7), bool)},
        {"key_lengths": 5},
        {"key_lengths": [7, 0, 4]},
        {"left_padding": 2},
        {"left_padding": [3, 0, 7], "key_lengths": [7, 6, 7]},
        {"query_offset": 2},
        {"query_offset": [3, 0, -2], "key_lengths": [7, 5, 7]},
        {"scale": 0.7},
        {"softcap": 0.4},
        {"softcap": 2.0, "mask": normal((4, 7), 3)},
        {"sinks": normal(HEADS, 7)},
        {"sinks": normal(HEADS, 7), "key_lengths": [7, 0, 4]},
    ],
)
def test_options(options, request):
    name = ("grouped", "everything")[zlib.crc32(request.node.nodeid.encode()) % 2]
    check(*build(name), [normal((3, 4, D)), normal((3, 7, D), 1)], options)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_dropout(name, seed):
    layer, meaning = build(name, dropout=0.3)
    inputs = [normal((2, 4, D)), normal((2, 7, D), 1)]
    check(layer, meaning, inputs, {"dropout_seed": seed})
    check(layer, meaning, inputs, {"dropout_seed": seed, "query_offset": [3, -1]})


def test_dynamic_scaling():
    layer, meaning = build("plain", rotary={"scaling": DYNAMIC})
    frequencies, _ = regard.positional.rotary_frequencies(DIM, scaling=DYNAMIC, length=5)
    meaning = meaning | {"rotary": {"inverse_frequencies": frequencies}}
    check(layer, meaning, [normal((2, 5, D))])


@pytest.mark.parametrize("name", [*list(LAYERS)[1::4], "everything"])
def test_single_precision(name):
    layer, meaning = build(name, np.float32)
    inputs = [normal((2, 5, D), 0, np.float32), normal((2, 6, D), 1, np.float32)]
    check(layer, meaning, inputs, limit=4e-6)


@pytest.mark.parametrize("name", ["plain", "everything"])
@pytest.mark.parametrize("step", [1e-5])
def test_central_differences(name, step):
    """The layer's own output changes by a step to either side of every number."""
    layer, _ = build(name)
    inputs = {"query": normal((2, 3, D)), "key": normal((2, 5, D), 1), "value": normal((2, 5, D))}
    output = layer(**inputs)
    grad = normal(output.shape, 9)
    gradients = layer.backward(grad)._asdict() | layer.grads
    layer.eval()
    for part, array in (inputs | layer.parameters()).items():
        slopes = np.empty(array.shape)
        for place in np.ndindex(array.shape):
            before = array[place]
            sums = []
            for moved in (before + step, before - step):
                array[place] = moved
                sums.append((grad * (layer(**inputs) - output)).sum())
            array[place] = before
            slopes[place] = (sums[0] - sums[1]) / (2 * step)
        assert_near(gradients[part], slopes, 1e-9)


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (2, 1, 3, 3)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "options",
    [{}, {"qkv_bias": True}, {"init": "uniform"}, {"init": "normal"}],
)
def test_one_head(options, dropout, is_causal, shape, dtype):
    layer = regard.SelfAttention(3, 2, rng=1, dtype=dtype, dropout=dropout, **options).train()
    x = normal(shape, 0, dtype)
    mask = normal((shape[-2], shape[-2]), 3) if is_causal else None
    call = {"is_causal": is_causal} | ({"dropout_seed": 5} if dropout else {})
    output = layer(x, mask, **call)
    grad = normal(output.shape, 9)
    state = {name: array.astype(float) for name, array in layer.parameters().items()}
    meaning = call | ({"dropout_p": dropout} if dropout else {})

    def written_out(arrays):
        return self_attention({name: arrays[name] for name in state}, arrays["x"], mask, **meaning)

    arrays = state | {"x": x.astype(float)}
    wanted = derivatives(written_out, grad, arrays)
    limit = 1e-13 if dtype == np.float64 else 4e-6
    assert_near(output, written_out(arrays).real, limit)
    assert_near(layer.backward(grad), wanted["x"], limit)
    assert list(layer.grads) == list(layer.state_dict())
    for name, gradient in layer.grads.items():
        assert gradient.dtype == dtype
        assert gradient.flags.c_contiguous
        assert_near(gradient, wanted[name], limit)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_no_bit(threads, kind, target):
    layer = kind()
    x = normal((2, 150, D))
    grad = output_like(layer, x)
    wanted = gradients_of(layer, x, grad)
    layer.zero_grads()
    layer(x, threads=threads)
    actual = {"x": layer.backward(grad, threads=threads)} | layer.grads
    assert_same_arrays(actual, wanted)


@pytest.mark.parametrize("shape", [(0, D), (2, 0, D), (0, 3, D)])
def test_empty_inputs(shape, kind):
    layer = kind()
    x = np.zeros(shape)
    found = gradients_of(layer, x, np.zeros((*shape[:-1], layer(x).shape[-1])))
    assert found.pop("x").shape == shape
    for name, parameter in layer.parameters().items():
        assert_same_bits(found[name], np.zeros_like(parameter))


def test_queries_without_keys():
    layer = build("everything")[0]
    grad = normal(layer(normal((2, 3, D)), np.zeros((2, 0, D))).shape, 8)
    gradients = layer.backward(grad)
    assert not gradients.query.any()
    assert gradients.key.shape == (2, 0, D)
    used = {name for name, gradient in layer.grads.items() if gradient.any()}
    assert used == {"out_proj.bias"}


def test_arguments_have_a_gradient_each():
    """An array that is passed three times has three gradients, whose sum is the gradient of passing
    it once."""
    layer, _ = build("everything")
    x = normal((2, 4, D))
    grad = output_like(layer, x)
    wanted = gradients_of(layer, x, grad)
    for inputs in ((x, x), (x, x, x), (x, x.copy(), x), (x, x.copy(), x.copy())):
        layer.zero_grads()
        layer(*inputs)
        gradients = layer.backward(grad)
        parts = [part for part in gradients if part is not None]
        assert len(parts) == len(inputs)
        np.testing.assert_allclose(sum(parts), wanted["x"], rtol=0, atol=1e-13)
        for name, gradient in layer.grads.items():
            np.testing.assert_allclose(gradient, wanted[name], rtol=0, atol=1e-12)


def test_what_no_query_sees_may_be_anything():
    """NaN beyond the key lengths reaches no gradient, not even as NaN times 0."""
    layer, _ = build("everything")
    x, memory = normal((2, 4, D)), normal((2, 7, D), 1)
    hidden = np.arange(7) >= np.array([7, 4])[:, None]
    memory[hidden] = 0
    grad = output_like(layer, x)
    kinds = []
    for hole in (0.0, np.nan, np.inf):
        memory[hidden] = hole
        layer.zero_grads()
        layer(x, memory, key_lengths=[7, 4])
        gradients = layer.backward(grad)
        assert not gradients.key[hidden].any()
        kinds.append({"query": gradients.query, "key": gradients.key} | layer.grads)
    for found in kinds[1:]:
        assert_same_arrays(found, kinds[0])


def test_nan_and_infinity_are_results():
    """NaN and infinity pass through all steps without a warning."""
    layer = build("Qwen 3", np.float32)[0]
    x = normal((2, 4, D))
    x[0, 3, 1], x[1, 3, 1] = np.nan, np.inf
    grad = np.ones_like(layer(x))
    assert np.isnan(layer.backward(grad)[:, 3]).all()
    x, grad = normal((2, 4, D)), np.full_like(grad, 1e38)
    layer.zero_grads()
    layer(x)
    layer.backward(grad)
    first = np.isfinite(layer.grads["out_proj.weight"])
    layer(x)
    layer.backward(grad)
    # A sum overflows that was finite before.
    assert (first & np.isinf(layer.grads["out_proj.weight"])).any()
    layer(x)
    assert np.isnan(layer.backward(3 * grad)).any()


@pytest.mark.parametrize("number", [0.0, 1e-25])
def test_norms_of_vectors_whose_mean_square_is_zero(number):
    """The norm divides by the root of a mean square that is 0 or underflows."""
    layer = regard.MultiHeadAttention(8, 2, qk_norm=0, rng=0).train()
    output = layer(np.full((3, 8), number, np.float32))
    assert np.isnan(output).all()
    assert np.isnan(layer.backward(np.ones_like(output))).all()


@pytest.mark.parametrize(
    "convert", [np.ndarray.tolist, lambda a: a.astype(">f4"), np.asfortranarray]
)
def test_gradients_are_converted(convert, kind):
    layer = kind()
    x = normal((2, 4, D), 0, np.float32)
    grad = output_like(layer, x).astype(np.float32)
    wanted = gradients_of(layer, x, grad)
    assert_same_arrays(gradients_of(layer, x, convert(grad)), wanted)
    assert_same_arrays(gradients_of(layer, convert(x), grad), wanted)
    frozen = grad.copy()
    frozen.flags.writeable = False
    assert_same_arrays(gradients_of(layer, x, frozen), wanted)
    assert_same_bits(frozen, grad)


def test_gradients_of_inputs_of_16_bits_are_those_of_the_layers_dtype(kind):
    layer = kind()
    x = normal((2, 4, D), 0, np.float16)
    grad = normal(layer(x).shape, 8, np.float16)
    wanted = gradients_of(layer, x.astype(np.float32), grad.astype(np.float32))
    assert_same_arrays(gradients_of(layer, x, grad), wanted)
