"""Test parameters in the layouts of other libraries, each against the formula of that layout."""

import numpy as np
import pytest

import regard
from dense_layers import multi_head
from reference import assert_same_bits, error, largest

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
PARTS = ("weight", "bias")
BERT = ("self.query", "self.key", "self.value", "output.dense")
OURS = ("W_query", "W_key", "W_value", "out_proj")
NAMES = {
    "llama": PROJ,
    "bert": BERT,
    "bart": OUT_PROJ,
    "whisper": OUT_PROJ,
    "gguf": GGUF,
    "regard": OURS,
}
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
    "torch, separate": (SEPARATE | TORCH_BIASES, BIASES | {"d_key": 5, "d_value": 7}),
    "llama": (apart(PROJ, kv=DIM, biases=()), {"num_kv_heads": 1}),
    "llama, Qwen 2": (
        apart(PROJ, kv=DIM, biases=("query", "key", "value")),
        {"num_kv_heads": 1, "qkv_bias": True},
    ),
    "llama, Gemma 3": (
        apart(PROJ, kv=DIM, biases=()) | NORMS,
        {"num_kv_heads": 1, "qk_norm": "rms_plus_one"},
    ),
    "bert": (apart(BERT), BIASES),
    "gpt2": (GPT2, BIASES),
    "bart": (apart(OUT_PROJ), BIASES),
    "whisper": (apart(OUT_PROJ, biases=("query", "value", "out")), BIASES),
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
    "regard": (apart(OURS), BIASES),
    "regard, distances": (
        apart(OURS, biases=()) | {"distance_bias": (HEADS, 5)},
        {"distance_bias": 3},
    ),
    "regard, everything": (
        apart(OURS, kv=DIM) | NORMS,
        BIASES | {"num_kv_heads": 1, "qk_norm": "rms"},
    ),
}


def linear_layers(title, state):
    """Return the weights (d_out, d_in) and the biases, or None, of query, key, value and out."""
    layout = title.partition(",")[0]
    if layout in NAMES:
        names = NAMES[layout]
        weights = [state.get(f"{name}.weight") for name in names]
        biases = [state.get(f"{name}.bias") for name in names]
        if title != "gguf, stacked":
            return weights, biases
        stack, out = "attn_qkv.{}", names[3] + ".{}"
    else:
        stack, out = "in_proj_{}", "out_proj.{}"
        if layout == "gpt2":
            stack, out = "c_attn.{}", "c_proj.{}"
    parts = {}
    for part in PARTS:
        stacked, last = state.get(stack.format(part)), state.get(out.format(part))
        if layout == "gpt2":
            stacked, last = stacked.T, last.T
        apart = [None] * 3 if stacked is None else np.split(stacked, 3)
        parts[part] = [*apart, last]
    if "q_proj_weight" in state:
        parts["weight"][:3] = [state[f"{letter}_proj_weight"] for letter in "qkv"]
    return parts["weight"], parts["bias"]


def as_its_owner_computes(title, state, inputs, kv_heads):
    """Compute the layer as the layout's own library does, in float64."""
    state = {name: array.astype(float) for name, array in state.items()}
    own = {name.removeprefix("attn_"): array for name, array in state.items() if "norm" in name}
    own |= {"distance_bias": state["distance_bias"]} if "distance_bias" in state else {}
    for part, arrays in zip(PARTS, linear_layers(title, state), strict=True):
        names = (f"{name}.{part}" for name in NAMES["regard"])
        own |= {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    options = {"heads": HEADS, "kv_heads": kv_heads, "norm_offset": title.endswith("Gemma 3")}
    return multi_head(own, *inputs, **options)[0]


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
    key_widths = options.get("d_key", D), options.get("d_value", D)
    inputs = normal((2, 5, D), 90), *(normal((2, 6, n), 90 + n) for n in key_widths)
    wanted = as_its_owner_computes(title, own, inputs, options.get("num_kv_heads", HEADS))
    limit = 64 * np.finfo(float).eps * largest(wanted)
    assert error(layer(*inputs), wanted) <= limit
    if title == "gguf, stacked":  # the stacked form is read, but the separate one is written
        weights, biases = linear_layers(title, own)
        parts = zip(GGUF, weights, biases, strict=True)
        state = {f"{dotted}{n}.{p}": a for n, *wb in parts for p, a in zip(PARTS, wb, strict=True)}
    back = layer.state_dict(title.partition(",")[0], prefix)
    assert set(back) == set(state)
    for name, array in back.items():
        assert_same_bits(array, state[name].astype(float))
        array[...] = 0
    assert error(layer(*inputs), wanted) <= limit


def test_a_layer_without_the_one_refuses_the_norms_of_gemma3():
    prefix = "layers.1.self_attn"
    names = ["input_layernorm", "post_attention_layernorm"]
    names += ["mlp.up_proj", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    state = drawn(STATES["llama, Gemma 3"][0], f"{prefix}.")
    block = state | {f"layers.1.{name}.weight": np.ones(D) for name in names}
    plain, plus_one = (
        regard.MultiHeadAttention(D, HEADS, rng=0, num_kv_heads=1, qk_norm=norm)
        for norm in ("rms", "rms_plus_one")
    )
    with pytest.raises(ValueError, match=r"qk_norm must be 'rms_plus_one' .* names of Gemma 3"):
        plain.load_state_dict(block, prefix)
    plain.load_state_dict(block | {"layers.1.layer_scalar.weight": np.ones(D)}, prefix)  # Gemma 4
    plus_one.load_state_dict(block, prefix)
    for name, array in plus_one.state_dict("llama", prefix).items():
        assert_same_bits(array, block[name])


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


def test_whispers_key_has_no_bias():
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, **BIASES)
    layer.load_state_dict(changed("bart", k_proj__bias=np.eye(D)[0]))  # 0 except for one number
    with pytest.raises(ValueError, match="names='whisper' has no place for b_key unless it is 0"):
        layer.state_dict("whisper")
    layer.load_state_dict(drawn(STATES["whisper"][0]))
    assert not layer.state_dict()["W_key.bias"].any()
    assert "k_proj.bias" in layer.state_dict("bart")


def test_layouts_without_gates():
    """Other layouts have no place for gates, which are then 1."""
    layer = regard.MultiHeadAttention(8, 4, num_kv_heads=2, head_gates=True, rng=0)
    layer.parameters()["head_gates"][:] = [1.0, 0.5, -2.0, 0.0]
    state = layer.state_dict()
    with pytest.raises(ValueError, match="no place for head_gates unless it is 1"):
        layer.state_dict("llama")
    plain = regard.MultiHeadAttention(8, 4, num_kv_heads=2, rng=5)
    layer.load_state_dict(plain.state_dict("llama"))
    assert_same_bits(layer.parameters()["head_gates"], np.ones(4, np.float32))
    assert_same_bits(
        layer.state_dict("llama")["o_proj.weight"], plain.state_dict()["out_proj.weight"]
    )
    layer.load_state_dict(state)
    assert_same_bits(layer.state_dict()["head_gates"], state["head_gates"])


def changed(title, **changes):
    state = drawn(STATES[title][0])
    for name, array in changes.items():
        name = name.replace("__", ".")
        if array is None:
            del state[name]
        else:
            state[name] = array
    return state


@pytest.mark.parametrize(
    ("title", "state", "prefix", "named"),
    [
        ("llama", changed("llama", k_proj__weight=None), "", "missing: k_proj.weight"),
        ("gpt2", changed("gpt2", c_proj__bias=None, c__bias=0), "", "unexpected: c.bias"),
        ("gpt2", changed("gpt2", c_proj__bias=np.zeros(D + 1)), "", r"c_proj.bias .* got \(13,\)"),
        ("llama", changed("llama", o_proj__bias=0), "", "o_proj.bias; a layer with out_bias=True"),
        ("torch", drawn(TORCH, "layers.0."), "layers.1", "begin with 'layers.1.', got layers.0"),
        ("torch", drawn(TORCH, "layers.0."), "", "pass prefix='layers.0'"),
    ],
)
def test_nothing_is_half_loaded(title, state, prefix, named):
    layer = regard.MultiHeadAttention(D, HEADS, rng=0, **STATES[title][1])
    before = layer.state_dict()
    with pytest.raises(ValueError, match=named):
        layer.load_state_dict(state, prefix)
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before[name])
