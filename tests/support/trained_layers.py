"""Layers in train mode, and checks of their gradients against `dense_layers`."""

import numpy as np

import regard
from dense_layers import derivatives, multi_head
from reference import assert_same_bits, largest

D, HEADS, DIM = 6, 4, 4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def normal(shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Options of the layer, and the same options for the layer written out.
LAYERS = {
    "plain": ({}, {}),
    "biases": ({"qkv_bias": True, "out_bias": True}, {}),
    "input biases": ({"qkv_bias": True}, {}),
    "output bias": ({"out_bias": True}, {}),
    "grouped": ({"num_kv_heads": 2, "qkv_bias": True}, {"kv_heads": 2}),
    "one key head": ({"num_kv_heads": 1}, {"kv_heads": 1}),
    "causal": ({"is_causal": True}, {"is_causal": True}),
    "window": ({"window": (2, 1)}, {"window": (2, 1)}),
    "causal window": (
        {"window": (1, None), "is_causal": True},
        {"window": (1, None), "is_causal": True},
    ),
    "rotary": ({"rotary": True}, {"rotary": {}}),
    "rotary, neighbors": ({"rotary": {"interleaved": True}}, {"rotary": {"interleaved": True}}),
    "rotary, partial": (
        {"rotary": {"base": 50.0, "rotary_dim": 2}, "qkv_bias": True},
        {"rotary": {"base": 50.0, "rotary_dim": 2}},
    ),
    "rotary, partial, neighbors": (
        {"rotary": {"rotary_dim": 2, "interleaved": True}},
        {"rotary": {"rotary_dim": 2, "interleaved": True}},
    ),
    "rotary, frequencies": (
        {"rotary": {"inverse_frequencies": [1.0, 0.3]}},
        {"rotary": {"inverse_frequencies": [1.0, 0.3]}},
    ),
    "yarn": ({"rotary": {"scaling": YARN}}, {"rotary": {"scaling": YARN}}),
    "alibi": (
        {"alibi": True, "is_causal": True},
        {"alibi_slopes": regard.positional.alibi_slopes(HEADS), "is_causal": True},
    ),
    "distances": ({"distance_bias": 3}, {}),
    "causal distances": (
        {"distance_bias": 2, "is_causal": True, "num_kv_heads": 2},
        {"is_causal": True, "kv_heads": 2},
    ),
    "gates": ({"head_gates": True}, {}),
    "norms": ({"qk_norm": "rms"}, {}),
    "norms, eps": ({"qk_norm": 0.5, "qkv_bias": True}, {"eps": 0.5}),
    "norms, plus one": ({"qk_norm": "rms_plus_one"}, {"norm_offset": 1}),
    "Qwen 3": (
        {"qk_norm": "rms", "rotary": True, "num_kv_heads": 2, "is_causal": True},
        {"rotary": {}, "kv_heads": 2, "is_causal": True},
    ),
    "everything": (
        {
            "qk_norm": 0.1, "rotary": {"interleaved": True, "rotary_dim": 2}, "num_kv_heads": 2,
            "window": (3, 1), "alibi": True, "qkv_bias": True, "out_bias": True, "distance_bias": 3,
            "head_gates": True,
        },
        {
            "eps": 0.1, "rotary": {"interleaved": True, "rotary_dim": 2}, "kv_heads": 2,
            "window": (3, 1), "alibi_slopes": regard.positional.alibi_slopes(HEADS),
        },
    ),
}  # fmt: skip


def build(name, dtype=np.float64, **more):
    options, meaning = LAYERS[name]
    layer = regard.MultiHeadAttention(D, HEADS, head_dim=DIM, rng=1, dtype=dtype, **options, **more)
    # The weights of norms and gates are initially 1, and biases 0, which would hide whether they
    # are used.
    for seed, (parameter, array) in enumerate(layer.parameters().items()):
        if "norm" in parameter or parameter in ("distance_bias", "head_gates"):
            array += 0.3 * normal(array.shape, seed)
    return layer.train(), {"heads": HEADS} | meaning


def assert_near(actual, wanted, limit):
    """Compare differences with the largest element, whose rounding affects all others."""
    assert actual.shape == wanted.shape
    assert np.isfinite(actual).all()
    assert largest(actual - wanted) <= limit * max(1.0, largest(wanted))


def check(layer, meaning, inputs, options=None, limit=1e-13):
    """Compare the output, the gradients of inputs and the gradients of parameters."""
    options = options or {}
    layer.zero_grads()
    output = layer(*inputs, **options)
    grad = normal(output.shape, 9)
    state = {name: array.astype(float) for name, array in layer.parameters().items()}
    names = ("query", "key", "value")[: len(inputs)]
    arrays = state | dict(zip(names, inputs, strict=True))
    if "dropout_seed" in options:
        meaning = meaning | {"dropout_p": 0.3}
    has_gates = "head_gates" in options
    if has_gates:
        arrays["given gates"] = np.asarray(options["head_gates"], float)

    def written_out(arrays):
        given = [arrays[name] for name in names]
        own = options | ({"head_gates": arrays["given gates"]} if has_gates else {})
        return multi_head({n: arrays[n] for n in state}, *given, **meaning, **own)

    wanted = derivatives(written_out, grad, arrays)
    assert_near(output, written_out(arrays).real, limit)
    gradients = layer.backward(grad)
    if len(inputs) == 1 and not has_gates:
        gradients = (gradients,)
    else:
        assert gradients._fields == ("query", "key", "value", "head_gates")
        assert all(each is None for each in gradients[len(inputs) : 3])
        assert (gradients.head_gates is not None) == has_gates
        if has_gates:
            assert gradients.head_gates.dtype == output.dtype
            assert_near(gradients.head_gates, wanted["given gates"], limit)
    for name, gradient in zip(names, gradients, strict=False):
        assert gradient.dtype == output.dtype, name
        assert_near(gradient, wanted[name], limit)
    assert list(layer.grads) == list(layer.state_dict())
    for name, gradient in layer.grads.items():
        assert gradient.dtype == output.dtype, name
        assert_near(gradient, wanted[name], limit)


def one_head(dtype=np.float32, **options):
    return regard.SelfAttention(D, 5, qkv_bias=True, rng=1, dtype=dtype, **options).train()


def many_heads(dtype=np.float32, **options):
    return build("everything", dtype, **options)[0]


def output_like(layer, x):
    """Return a gradient for the output."""
    return normal(layer(x).shape, 8)


def gradients_of(layer, x, grad, **options):
    """Return all gradients of one call, by name."""
    layer.zero_grads()
    layer(x, **options)
    return {"x": layer.backward(grad)} | layer.grads


def assert_same_arrays(actual, wanted):
    assert list(actual) == list(wanted)
    for name, array in wanted.items():
        assert_same_bits(actual[name], array)
