"""Test multi-head attention: outputs, weights and gradients against the formula in float64."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from dense_layers import multi_head, naive
from drawn_problems import TARGETS, examples, on_target
from reference import assert_same_bits, derivatives, error, largest
from trained_layers import DIM, HEADS, D, assert_near, assert_same_arrays, normal
from trained_layers import multi_head as layer_with

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 6}
ROTARY = [
    None,
    True,
    {"base": 50.0, "rotary_dim": 2},
    {"interleaved": True},
    {"rotary_dim": 2, "interleaved": True},
    {"inverse_frequencies": [1.0, 0.3]},
    {"scaling": YARN},
]
NORMS = {None: {}, "rms": {}, 0.5: {"eps": 0.5}, "rms_plus_one": {"norm_offset": 1}}
# The batch axes of query, key and value; None for inputs that are not given.
BATCHES = [
    ((), None, None),
    ((3,), None, None),
    ((2, 1), None, None),
    ((3,), (3,), None),
    ((3,), (1,), None),
    ((), (3,), None),
    ((3,), (3,), (3,)),
    ((2, 1), (3,), (2, 1)),
    ((), (), (2,)),
]


@st.composite
def layers(draw):
    """Return the options of a layer, and the same options for the formula."""
    rotary = draw(st.sampled_from(ROTARY))
    norm = draw(st.sampled_from(list(NORMS)))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    shared = {
        "is_causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, (2, 1), (1, None), (None, 0)])),
    }
    alibi = draw(st.booleans())
    options = shared | {
        "num_kv_heads": kv_heads,
        "rotary": rotary,
        "qk_norm": norm,
        "alibi": alibi,
        "qkv_bias": draw(st.booleans()),
        "out_bias": draw(st.booleans()),
        "distance_bias": draw(st.sampled_from([None, 1, 3])),
        "head_gates": draw(st.booleans()),
        "dropout": draw(st.sampled_from([0, 0, 0, 0.3])),
    }
    meaning = shared | {
        "heads": HEADS,
        "kv_heads": kv_heads,
        "rotary": {} if rotary is True else rotary,
        "alibi_slopes": regard.positional.alibi_slopes(HEADS) if alibi else None,
    }
    return options, meaning | NORMS[norm]


@st.composite
def calls(draw, batch, batch_of_query, q_len, kv_len):
    """Return the options of a call, some of them for each entry of the batch."""

    def integers(low, high, axes):
        one = st.integers(low, high)
        count = int(np.prod(axes))
        many = st.lists(one, min_size=count, max_size=count)
        return draw(st.one_of(one, many.map(lambda each: np.reshape(each, axes))))

    def float_mask(shape):
        drawn = normal(shape, 4)
        return np.where(normal(shape, 3) < -1, -np.inf, drawn)

    masks = [
        *(np.arange(kv_len) < 4, np.zeros((q_len, kv_len), bool)),
        np.arange(kv_len) != np.arange(HEADS)[:, None, None],
        float_mask((*batch, 1, q_len, kv_len)),
        (normal((q_len, kv_len), 5) < 1, float_mask((kv_len,))),
    ]
    gates = [0.3, [2, 0, -1, 1], normal((*batch, HEADS), 5), normal((*batch, 1), 5)]
    options = {
        "mask": lambda: draw(st.sampled_from(masks)),
        "key_lengths": lambda: integers(0, kv_len, batch_of_query),
        "left_padding": lambda: integers(0, min(kv_len, 3), batch),
        "query_offset": lambda: draw(st.sampled_from(["end", integers(-2, 4, batch_of_query)])),
        "scale": lambda: 0.7,
        "softcap": lambda: draw(st.sampled_from([0.4, 2.0])),
        "sinks": lambda: normal(HEADS, 7),
        "head_gates": lambda: draw(st.sampled_from(gates)),
    }
    chosen = draw(st.lists(st.sampled_from(list(options)), unique=True, max_size=4))
    return {name: options[name]() for name in chosen}


@examples(100)
@hypothesis.given(st.data())
def test_outputs_weights_and_gradients_are_those_of_the_formula(data):
    with on_target(data.draw(TARGETS)):
        check(*problem(data))


def problem(data):
    """Draw a layer, its meaning, its inputs and the options of a call."""
    dtype = np.dtype(data.draw(st.sampled_from([np.float64, np.float64, np.float32])))
    own, meaning = data.draw(layers())
    batches = data.draw(st.sampled_from(BATCHES))
    q_len, kv_len = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([3, 7]))
    kv_len = q_len if batches[1] is None else kv_len
    widths = [D, data.draw(st.sampled_from([D, 7])), data.draw(st.sampled_from([D, 8]))]
    if batches[1] is None:
        widths = [D, D, D]
    elif batches[2] is None:
        widths[2] = widths[1]
    inputs = [
        normal((*batch, length, width), seed, dtype)
        for seed, (batch, length, width) in enumerate(
            zip(batches, (q_len, kv_len, kv_len), widths, strict=True)
        )
        if batch is not None
    ]
    batch = np.broadcast_shapes(*(x.shape[:-2] for x in inputs))
    call = data.draw(calls(batch, inputs[0].shape[:-2], q_len, kv_len))
    layer = layer_with(dtype, **own, d_key=widths[1], d_value=widths[2])
    return layer, meaning, inputs, call


def check(layer, meaning, inputs, call):
    """Compare output and weights with the formula, and a few elements of each gradient."""
    dtype = inputs[0].dtype
    meaning = meaning | call
    if isinstance(call.get("query_offset"), str):
        last = np.asarray(call.get("key_lengths", inputs[-1].shape[-2]))
        meaning["query_offset"] = last - inputs[0].shape[-2]
    output, weights = layer(*inputs, **call, return_weights=True)
    check_forward((output, weights), layer, meaning, inputs)
    assert_same_bits(layer(*inputs, **call, threads=1), output)

    layer.train()
    if "dropout=" in repr(layer):
        call = call | {"dropout_seed": 2**64 - 1}
        meaning |= {"dropout_p": 0.3, "dropout_seed": 2**64 - 1}
    trained = layer(*inputs, **call)
    if "dropout_seed" not in call:
        assert_same_bits(trained, output)
    grad = normal(output.shape, 9)
    gradients = layer.backward(grad)
    has_gates = meaning.pop("head_gates", None) is not None

    state = {name: array.astype(float) for name, array in layer.parameters().items()}
    names = ("query", "key", "value")[: len(inputs)]
    arrays = state | dict(zip(names, inputs, strict=True))
    if has_gates:
        arrays["given"] = np.asarray(call["head_gates"], float)

    def written_out(arrays):
        gates = {"head_gates": arrays["given"]} if has_gates else {}
        parameters = {name: arrays[name] for name in state}
        return multi_head(parameters, *(arrays[name] for name in names), **meaning, **gates)[0]

    assert_near(trained, written_out({n: a.astype(float) for n, a in arrays.items()}), dtype)
    wanted = derivatives(written_out, grad, arrays, most=4)
    if len(inputs) == 1 and not has_gates:
        gradients = (gradients,)
    else:
        assert gradients._fields == ("query", "key", "value", "head_gates")
        assert all(each is None for each in gradients[len(inputs) : 3])
        assert (gradients.head_gates is not None) == has_gates
        if has_gates:
            assert_near(gradients.head_gates, wanted["given"], dtype)
    for name, gradient in zip(names, gradients, strict=False):
        assert_near(gradient, wanted[name], dtype)
    assert list(layer.grads) == list(layer.state_dict())
    for name, gradient in layer.grads.items():
        assert_near(gradient, wanted[name], dtype)


def check_forward(actual, layer, meaning, inputs):
    """Allow twice the error of the same formula in NumPy in the layer's precision, and a few
    roundings if that is exact by luck."""
    dtype, state = inputs[0].dtype, layer.parameters()
    wide = {name: array.astype(float) for name, array in state.items()}
    exact = multi_head(wide, *(x.astype(float) for x in inputs), **meaning)
    gates = {n: np.asarray(meaning[n]).astype(dtype) for n in ("head_gates",) if n in meaning}
    plain = multi_head(state, *inputs, **meaning | gates, attend=naive)
    for part, wanted, near in zip(actual, exact, plain, strict=True):
        assert part.dtype == near.dtype == dtype
        assert part.shape == wanted.shape
        floor = 16 * np.finfo(dtype).eps * max(1.0, largest(wanted))
        assert error(part, wanted) <= 2 * error(near, wanted) + floor


def test_inputs_that_are_one_array_have_the_bits_of_copies(target):
    """Projections of equal inputs are one product; batches are calls of their entries."""
    layer, x = layer_with(np.float32, num_kv_heads=2, rotary=True, qkv_bias=True), normal((3, 7, D))
    x.flags.writeable = False
    wanted = layer(x)
    assert_same_bits(layer(x, x, x), wanted)
    assert_same_bits(layer(x, x.copy(), x.copy()), wanted)
    assert_same_bits(np.stack([layer(entry) for entry in x]), wanted)


def test_dynamic_scaling_follows_the_longer_of_queries_and_keys():
    layer = layer_with(rotary={"scaling": DYNAMIC})
    for offset, length in ((0, 11), (30, 34)):
        frequencies, _ = regard.positional.rotary_frequencies(DIM, scaling=DYNAMIC, length=length)
        meaning = {"heads": HEADS, "rotary": {"inverse_frequencies": frequencies}}
        inputs = [normal((4, D)), normal((11, D), 1)]
        check(layer.eval(), meaning, inputs, {"query_offset": offset})
        layer.zero_grads()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (False, True), (True, True)])
def test_parameters_are_drawn_as_four_linear_layers(biases, dtype):
    generator = regard.TorchGenerator(5)
    options = {"num_kv_heads": 1, "d_key": 5, "qkv_bias": biases[0], "out_bias": biases[1]}
    extra = {"qk_norm": "rms", "distance_bias": 4, "head_gates": True}
    rng = regard.TorchGenerator(5)
    state = regard.MultiHeadAttention(12, 3, **options, **extra, rng=rng, dtype=dtype).state_dict()
    for name, d_in, d_out, bias in (
        ("W_query", 12, 12, biases[0]),
        ("W_key", 5, 4, biases[0]),
        ("W_value", 5, 4, biases[0]),
        ("out_proj", 12, 12, biases[1]),
    ):
        weight, drawn = generator.linear(d_in, d_out, bias, dtype)
        assert_same_bits(state.pop(f"{name}.weight"), weight)
        if bias:
            assert_same_bits(state.pop(f"{name}.bias"), drawn)
    neutral = {"q_norm.weight": np.ones(4), "k_norm.weight": np.ones(4)}
    neutral |= {"distance_bias": np.zeros((3, 7)), "head_gates": np.ones(3)}
    assert_same_arrays(state, {name: each.astype(dtype) for name, each in neutral.items()})
