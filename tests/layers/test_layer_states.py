"""Test parameters in the layouts of other libraries, each against the formula of that layout."""

import numpy as np
import pytest

import reference
import regard
from reference import assert_same_bits

D, HEADS, DIM = 12, 3, 4


def normal(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def drawn(shapes, prefix=""):
    return {
        prefix + name: normal(shape, seed).astype(np.float32)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def apart(names, kv=D, biases=("query", "key", "value", "out")):
    """Return the shapes of four linear layers, whose `names` are query, key, value and out."""
    shapes = {}
    for role, name in zip(("query", "key", "value", "out"), names, strict=True):
        rows = kv if role in ("key", "value") else D
        shapes[f"{name}.weight"] = (rows, D)
        if role in biases:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


BIASES = {"qkv_bias": True, "out_bias": True}
PROJ = ("q_proj", "k_proj", "v_proj", "o_proj")
OUT_PROJ = (*PROJ[:3], "out_proj")
GGUF = ("attn_q", "attn_k", "attn_v", "attn_output")
TORCH = {"in_proj_weight": (3 * D, D), "out_proj.weight": (D, D)}
TORCH_BIASES = {"in_proj_bias": (3 * D,), "out_proj.bias": (D,)}
GPT2 = {
    "c_attn.weight": (D, 3 * D),
    "c_attn.bias": (3 * D,),
    "c_proj.weight": (D, D),
    "c_proj.bias": (D,),
}
BERT = ("self.query", "self.key", "self.value", "output.dense")
SEPARATE = {
    "q_proj_weight": (D, D),
    "k_proj_weight": (D, 5),
    "v_proj_weight": (D, 7),
    "out_proj.weight": (D, D),
}
NORMS = {"q_norm.weight": (DIM,), "k_norm.weight": (DIM,)}
# The arrays of each layout and model, and the options of the layer that they belong to.
STATES = {
    "torch": (TORCH | TORCH_BIASES, BIASES),
    "torch, no biases": (TORCH, {}),
    "torch, separate": (SEPARATE | TORCH_BIASES, BIASES | {"d_key": 5, "d_value": 7}),
    "torch, separate, no biases": (SEPARATE, {"d_key": 5, "d_value": 7}),
    "llama": (apart(PROJ, kv=DIM, biases=()), {"num_kv_heads": 1}),
    "llama, Qwen 2": (
        apart(PROJ, kv=DIM, biases=("query", "key", "value")),
        {"num_kv_heads": 1, "qkv_bias": True},
    ),
    "llama, Qwen 3": (
        apart(PROJ, kv=DIM, biases=()) | NORMS,
        {"num_kv_heads": 1, "qk_norm": "rms"},
    ),
    "llama, Gemma 3": (
        apart(PROJ, kv=DIM, biases=()) | NORMS,
        {"num_kv_heads": 1, "qk_norm": "rms_plus_one"},
    ),
    "bert": (apart(BERT), BIASES),
    "gpt2": (GPT2, BIASES),
    "bart": (apart(OUT_PROJ), BIASES),
    "whisper": (apart(OUT_PROJ, biases=("query", "value", "out")), BIASES),
    "gguf": (apart(GGUF, kv=DIM, biases=()), {"num_kv_heads": 1}),
    "gguf, Qwen 3": (
        apart(GGUF, kv=DIM, biases=()) | {f"attn_{name}": s for name, s in NORMS.items()},
        {"num_kv_heads": 1, "qk_norm": "rms"},
    ),
    "gguf, biases": (apart(GGUF), BIASES),
    "gguf, stacked": (
        {"attn_qkv.weight": (3 * D, D), "attn_qkv.bias": (3 * D,)}
        | {"attn_output.weight": (D, D), "attn_output.bias": (D,)},
        BIASES,
    ),
    "regard": (apart(("W_query", "W_key", "W_value", "out_proj")), BIASES),
    "regard, distances": (
        apart(("W_query", "W_key", "W_value", "out_proj"), biases=())
        | {"distance_bias": (HEADS, 5)},
        {"distance_bias": 3},
    ),
    "regard, everything": (
        apart(("W_query", "W_key", "W_value", "out_proj"), kv=DIM) | NORMS,
        BIASES | {"num_kv_heads": 1, "qk_norm": "rms"},
    ),
}


def as_its_owner_computes(title, state, inputs, kv_heads):
    """Compute the layer as the layout's own library does, in float64."""
    state = {name: array.astype(float) for name, array in state.items()}
    if title.startswith("gpt2"):
        products = [
            x @ state["c_attn.weight"][:, i * D : (i + 1) * D]
            + state["c_attn.bias"][i * D : (i + 1) * D]
            for i, x in enumerate(inputs)
        ]
        out = (state["c_proj.weight"], state["c_proj.bias"])
    elif "attn_qkv.weight" in state:
        products = [
            x @ weight.T + bias
            for x, weight, bias in zip(
                inputs,
                np.split(state["attn_qkv.weight"], 3),
                np.split(state["attn_qkv.bias"], 3),
                strict=True,
            )
        ]
        out = (state["attn_output.weight"].T, state["attn_output.bias"])
    elif title.startswith("torch"):
        bias = state.get("in_proj_bias", np.zeros(3 * D)).reshape(3, D)
        weights = (
            state["in_proj_weight"].reshape(3, D, D)
            if "in_proj_weight" in state
            else [state[f"{letter}_proj_weight"] for letter in "qkv"]
        )
        products = [x @ weights[i].T + bias[i] for i, x in enumerate(inputs)]
        out = (state["out_proj.weight"].T, state.get("out_proj.bias", 0))
    else:
        names = {
            "bert": BERT,
            "llama": PROJ,
            "bart": OUT_PROJ,
            "whisper": OUT_PROJ,
            "gguf": GGUF,
        }.get(title.partition(",")[0], ("W_query", "W_key", "W_value", "out_proj"))
        products = [
            x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)
            for name, x in zip(names[:3], inputs, strict=True)
        ]
        out = (state[f"{names[3]}.weight"].T, state.get(f"{names[3]}.bias", 0))
    heads = [
        product.reshape(*product.shape[:-1], count, DIM).swapaxes(-2, -3)
        for product, count in zip(products, (HEADS, kv_heads, kv_heads), strict=True)
    ]
    for i, letter in enumerate("qk"):
        name = f"{'attn_' * title.startswith('gguf')}{letter}_norm.weight"
        if name in state:
            mean = np.mean(heads[i] ** 2, axis=-1, keepdims=True) + 1e-6
            heads[i] = heads[i] / np.sqrt(mean) * (state[name] + title.endswith("Gemma 3"))
    options = {name: state[name] for name in ("distance_bias",) if name in state}
    output = reference.attention(*heads, **options).output.swapaxes(-2, -3)
    return output.reshape(*output.shape[:-2], D) @ out[0] + out[1]


def unstacked(state):
    """Return the state of a GGUF block with its stacked projections separated."""
    apart = {name: array for name, array in state.items() if "qkv" not in name}
    for part in ("weight", "bias"):
        rows = np.split(state[f"attn_qkv.{part}"], 3)
        apart |= {f"{name}.{part}": row for name, row in zip(GGUF[:3], rows, strict=True)}
    return apart


def inputs_for(options):
    query = normal((2, 5, D), 90)
    key = normal((2, 6, options.get("d_key", D)), 91)
    return query, key, normal((2, 6, options["d_value"]), 92) if "d_value" in options else key


@pytest.mark.parametrize("prefix", ["", "model.layers.1.attn", "model.layers.1.attn."])
@pytest.mark.parametrize("title", STATES)
def test_a_state_of_others_computes_what_its_owner_does(title, prefix):
    shapes, options = STATES[title]
    dotted = prefix and prefix.rstrip(".") + "."
    state = drawn(shapes, dotted)
    # A whole model, in which another layer's number begins with the same digit.
    other = {"model.layers.11.attn.q_proj.weight": 0, "model.layers.1.attn_norm": 0, "lm": 0}
    model = state | (other if prefix else {})
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, dtype=np.float64, **options)
    layer.load_state_dict(model, prefix)
    own = {name.removeprefix(dotted): array for name, array in state.items()}
    inputs = inputs_for(options)
    wanted = as_its_owner_computes(title, own, inputs, options.get("num_kv_heads", HEADS))
    limit = 64 * np.finfo(float).eps * reference.largest(wanted)
    assert reference.error(layer(*inputs), wanted) <= limit
    if title == "gguf, stacked":  # the stacked form is read, but the separate one is written
        state = {dotted + name: array for name, array in unstacked(own).items()}
    back = layer.state_dict(title.partition(",")[0], prefix)
    assert set(back) == set(state)
    for name, array in back.items():
        assert_same_bits(array, state[name].astype(float))
        array[...] = 0
    assert reference.error(layer(*inputs), wanted) <= limit


def block_of_gemma3(*others):
    names = ["mlp.up_proj", "input_layernorm", "post_attention_layernorm"]
    names += ["pre_feedforward_layernorm", "post_feedforward_layernorm", *others]
    state = drawn(STATES["llama, Gemma 3"][0], "layers.1.self_attn.")
    return state | {f"layers.1.{name}.weight": np.ones(D) for name in names}


def test_a_layer_without_the_one_refuses_the_norms_of_gemma3():
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, num_kv_heads=1, qk_norm="rms")
    message = (
        r"qk_norm must be 'rms_plus_one' for a state with the names of Gemma 3, .* 1 \+ weight"
    )
    with pytest.raises(ValueError, match=message):
        layer.load_state_dict(block_of_gemma3(), "layers.1.self_attn")
    layer.load_state_dict(block_of_gemma3("layer_scalar"), "layers.1.self_attn")  # Gemma 4
    other = regard.MultiHeadAttention(D, HEADS, rng=0, num_kv_heads=1, qk_norm="rms_plus_one")
    other.load_state_dict(block_of_gemma3(), "layers.1.self_attn")
    for name, array in other.state_dict("llama", "layers.1.self_attn").items():
        assert_same_bits(array, block_of_gemma3()[name])


def test_gguf_files_store_the_sum_of_one_and_the_weight():
    """As llama.cpp's converter writes it for every model of this kind."""
    state = drawn(STATES["gguf, Qwen 3"][0])
    state = {name: np.round(array * 64) / 64 for name, array in state.items()}  # sums are exact
    sizes = {"num_kv_heads": 1, "rng": 0}
    plain = regard.MultiHeadAttention(D, HEADS, qk_norm="rms", **sizes)
    plus_one = regard.MultiHeadAttention(D, HEADS, qk_norm="rms_plus_one", **sizes)
    for layer in (plain, plus_one):
        layer.load_state_dict(state)
        for name, array in layer.state_dict("gguf").items():
            assert_same_bits(array, state[name])
    x = normal((5, D), 90)
    assert_same_bits(plus_one(x), plain(x))
    for name in ("q_norm.weight", "k_norm.weight"):
        assert_same_bits(plus_one.state_dict()[name], state[f"attn_{name}"] - 1)


@pytest.mark.parametrize(
    ("title", "beside"),
    [
        ("gpt2", ["bias", "masked_bias"]),
        ("bert", ["output.LayerNorm.weight", "output.LayerNorm.bias"]),
        ("bert", ["output.LayerNorm.gamma", "output.LayerNorm.beta"]),
        ("llama", ["rotary_emb.inv_freq"]),
        ("gguf", ["attn_norm.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_down.bias"]),
        ("regard", ["mask"]),
    ],
)
def test_what_stands_beside_the_parameters_is_passed_over(title, beside):
    shapes, options = STATES[title]
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, **options)
    state = drawn(shapes)
    layer.load_state_dict(state | dict.fromkeys(beside, np.zeros((1, 1))))
    for name, array in layer.state_dict(title).items():
        assert_same_bits(array, state[name])


def test_whispers_key_has_no_bias():
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, **BIASES)
    with pytest.raises(ValueError, match="names='whisper' has no place for b_key unless it is 0"):
        layer.state_dict("whisper")
    layer.load_state_dict(changed("bart", k_proj__bias=np.eye(D)[0]))  # 0 except for one number
    with pytest.raises(ValueError, match="names='whisper' has no place for b_key unless it is 0"):
        layer.state_dict("whisper")
    layer.load_state_dict(drawn(STATES["whisper"][0]))
    assert not layer.state_dict()["W_key.bias"].any()
    assert "k_proj.bias" in layer.state_dict("bart")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", ">f4"])
def test_arrays_are_converted(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    layer = regard.MultiHeadAttention(D, HEADS, rng=0)
    state = {name: array.astype(dtype) for name, array in drawn(STATES["torch"][0]).items()}
    del state["in_proj_bias"], state["out_proj.bias"]
    layer.load_state_dict(state)
    for name, array in layer.state_dict("torch").items():
        assert_same_bits(array, state[name].astype(np.float32))


def changed(title, **changes):
    state = drawn(STATES[title][0])
    for name, array in changes.items():
        name = name.replace("__", ".")
        if array is None:
            del state[name]
        else:
            state[name] = array
    return state


LLAMA_KEYS = ", ".join(f"{name}.weight" for name in PROJ)
GPT2_KEYS = ", ".join(GPT2)
LAYOUTS = (
    "state must have the names of one of the layouts regard (W_query.weight, ...), torch "
    "(in_proj_weight, ...), torch (q_proj_weight, ...), llama (q_proj.weight, ...), bert "
    "(self.query.weight, ...), gpt2 (c_attn.weight, ...), bart (q_proj.weight, ...), whisper "
    "(q_proj.weight, ...), gguf (attn_q.weight, ...), gguf (attn_qkv.weight, ...)"
)


@pytest.mark.parametrize(
    ("title", "state", "prefix", "error", "message"),
    [
        (
            "llama",
            changed("llama", k_proj__weight=None, q_proj__bias=np.zeros(D)),
            "",
            ValueError,
            f"state must have the keys {LLAMA_KEYS}, got missing: k_proj.weight, unexpected: "
            "q_proj.bias",
        ),
        (
            "gpt2",
            changed("gpt2", c_proj__bias=None),
            "",
            ValueError,
            f"state must have the keys {GPT2_KEYS}, got missing: c_proj.bias, unexpected: none",
        ),
        (
            "gpt2",
            changed("gpt2", c_attn__weight=np.zeros((3 * D, D)), c_proj__bias=np.zeros(D + 1)),
            "",
            ValueError,
            "c_attn.weight must have shape (12, 36), got (36, 12); c_proj.bias must have shape "
            "(12,), got (13,)",
        ),
        (
            "bert",
            changed("bert", **{"self.key.weight": np.zeros((D, D), int)}),
            "",
            TypeError,
            "self.key.weight must be floating-point, got int64",
        ),
        (
            "torch",
            drawn(TORCH | TORCH_BIASES, "layers.0."),
            "layers.1",
            ValueError,
            "state must have names that begin with 'layers.1.', got layers.0.in_proj_weight, "
            "layers.0.out_proj.weight, layers.0.in_proj_bias, layers.0.out_proj.bias",
        ),
        (
            "torch",
            drawn(TORCH | TORCH_BIASES, "layers.0."),
            "",
            ValueError,
            f"{LAYOUTS}, got layers.0.in_proj_weight, layers.0.out_proj.weight, "
            "layers.0.in_proj_bias, layers.0.out_proj.bias; pass prefix='layers.0' for one of its "
            "layers",
        ),
        ("torch", {}, "", ValueError, f"{LAYOUTS}, got none"),
        ("torch", {"wq": 0, "wk": 0}, "", ValueError, f"{LAYOUTS}, got wq, wk"),
        ("torch", {}, None, TypeError, "prefix must be a str, got NoneType"),
        ("torch", [1], "", TypeError, "state must be a mapping, got list"),
    ],
)
def test_nothing_is_half_loaded(title, state, prefix, error, message):
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, **STATES[title][1])
    before = layer.state_dict()
    with pytest.raises(error) as raised:
        layer.load_state_dict(state, prefix)
    assert str(raised.value) == message
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before[name])


def test_of_very_many_names_the_first_are_told():
    layer = regard.MultiHeadAttention(D, HEADS, rng=0)
    with pytest.raises(ValueError, match=r"got n0, n1, .*, n19 and 80 more$"):
        layer.load_state_dict({f"n{i}": 0 for i in range(100)})


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("keras", {}, "names must be one of ['regard', 'torch', 'llama', 'bert', 'gpt2', 'bart', "),
        (None, {}, "names must be one of ['regard', "),
        ("torch", {"num_kv_heads": 1}, "names must be 'regard' or a layout that fits this layer"),
        ("gpt2", {"d_key": 5}, "names must be 'regard' or a layout that fits this layer"),
        ("bert", {"qk_norm": "rms"}, "names must be 'regard' or a layout that fits this layer"),
    ],
)
def test_errors_of_names(names, options, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        regard.MultiHeadAttention(D, HEADS, rng=0, **options).state_dict(names)
    assert str(raised.value).startswith(message)
