"""Small models of the Llama family, their files, and their results by the book."""

import functools
import json
import math
import pathlib
import tempfile

import numpy as np

import regard

WIDTH, HEADS, KV_HEADS, DIM, INNER, LAYERS, WORDS = 24, 4, 2, 8, 40, 3, 11
TEXT = "w3 w1 w4 w1 w5 w9 w2 w6"


def parameters(rng, model_type):
    shapes = {
        "self_attn.q_proj": (HEADS * DIM, WIDTH),
        "self_attn.k_proj": (KV_HEADS * DIM, WIDTH),
        "self_attn.v_proj": (KV_HEADS * DIM, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * DIM),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
    }
    if model_type == "qwen3":
        shapes |= {"self_attn.q_norm": (DIM,), "self_attn.k_norm": (DIM,)}
    found = {
        "model.embed_tokens.weight": rng.standard_normal((WORDS, WIDTH)),
        "model.norm.weight": rng.standard_normal(WIDTH),
    }
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        found |= {f"{start}{name}.weight": rng.standard_normal(s) for name, s in shapes.items()}
        if model_type == "qwen2":
            for letter, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                name = f"{start}self_attn.{letter}_proj.bias"
                found[name] = rng.standard_normal(heads * DIM)
    return {name: array.astype(np.float32) for name, array in found.items()}


CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
}


def computed(own, numbers, window=None, config=CONFIG, dtype=np.float64):
    """Return the rotated queries and keys of each layer, and the logits after each token.

    One sequence, whole matrices, no cache, no regard. A token sees the last `window`.
    """
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    dim, epsilon = config["head_dim"], dtype(config["rms_norm_eps"])
    frequencies = config["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    angles = np.arange(len(numbers))[:, None] * frequencies
    places = np.arange(len(numbers))
    visible = places[:, None] >= places
    if window is not None:
        visible &= places[:, None] - places < window

    def norm(x, weight):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight

    def heads_of(x, start, letter, heads):
        rows = x @ own[f"{start}self_attn.{letter}_proj.weight"].T
        rows = rows + own.get(f"{start}self_attn.{letter}_proj.bias", dtype(0))
        split = rows.reshape(-1, heads, dim).swapaxes(0, 1)
        weight = own.get(f"{start}self_attn.{letter}_norm.weight")
        return split if weight is None else norm(split, weight)

    def turned(x):
        a, b = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(dtype)

    own = {name: array.astype(dtype) for name, array in own.items()}
    x, found = own["model.embed_tokens.weight"][numbers], []
    for layer in range(config["num_hidden_layers"]):
        start = f"model.layers.{layer}."
        normed = norm(x, own[f"{start}input_layernorm.weight"])
        query = turned(heads_of(normed, start, "q", heads))
        key = turned(heads_of(normed, start, "k", kv_heads))
        value = heads_of(normed, start, "v", kv_heads)
        found.append((query, key))
        key, value = (np.repeat(rows, heads // kv_heads, axis=0) for rows in (key, value))
        scores = np.where(visible, query @ key.swapaxes(1, 2) / math.sqrt(dim), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        rows = (weights @ value).swapaxes(0, 1).reshape(len(numbers), -1)
        x = x + rows @ own[f"{start}self_attn.o_proj.weight"].T
        normed = norm(x, own[f"{start}post_attention_layernorm.weight"])
        gate = normed @ own[f"{start}mlp.gate_proj.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (normed @ own[f"{start}mlp.up_proj.weight"].T)
        x = x + inner @ own[f"{start}mlp.down_proj.weight"].T
    head = own.get("lm_head.weight", own["model.embed_tokens.weight"])
    return found, norm(x, own["model.norm.weight"]) @ head.T


def assert_close(found, exact):
    assert np.allclose(found, exact, rtol=1e-4, atol=1e-3 * np.abs(exact).max())


def write_folder(path, own, parts=1, **changes):
    """Write a model as Hugging Face does, in one or more files, with changes to its configuration;
    None leaves an entry out."""
    import tokenizers
    from safetensors.numpy import save_file

    path.mkdir(exist_ok=True)
    names = [f"model-{part}.safetensors" for part in range(parts)]
    if parts == 1:
        names = ["model.safetensors"]
    else:
        index = {name: names[i % parts] for i, name in enumerate(own)}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    for number, name in enumerate(names):
        save_file({each: own[each] for each in list(own)[number::parts]}, path / name)
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))
    encoder = tokenizers.models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(encoder)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def renamed(name):
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name.replace("model.layers.", "blk.")


def interleaved(array):
    """Order the rows of each head as llama.cpp does for files of Llama models."""
    return array.reshape(-1, 2, DIM // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def as_gguf(own, architecture):
    """Return a model's metadata and tensors under the names of GGUF files."""
    facts = {
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 500.0,
    }
    tensors = {}
    for name, array in own.items():
        is_turned = architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight"))
        tensors[renamed(name)] = interleaved(array) if is_turned else array
    return {f"{architecture}.{name}": value for name, value in facts.items()}, tensors


def from_gguf(parameters, metadata):
    """Return the parameters of a Llama model under Hugging Face's names, and its configuration."""
    heads = metadata["llama.attention.head_count"]
    config = {
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
    }
    own = {}
    for name, array in parameters.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            pairs = array.reshape(-1, config["head_dim"] // 2, 2, array.shape[1])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        name = name.replace("blk.", "model.layers.")
        for theirs, ours in NAMES.items():
            name = name.replace(ours, theirs)
        own[name] = array
    return own, config


def write_gguf(path, architecture, facts, tensors, kind=None):
    """Write a GGUF file, with matrices of a quantized `kind`."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for name, value in facts.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, list) and value:
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
    for name, array in tensors.items():
        if kind is None or array.ndim < 2:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


SPECIAL = ["<|im_start|>", "<|im_end|>"]


def alphabet():
    """Return GPT-2's characters for the 256 bytes, in a fixed order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(rest))]


@functools.cache
def tiny_llama():
    """Return a model of random numbers, with a vocabulary of bytes."""
    rng = np.random.default_rng(0)
    tokens = [*alphabet(), *SPECIAL, "~~"]
    own = parameters(rng, "llama")
    own["model.embed_tokens.weight"] = rng.standard_normal((len(tokens), WIDTH), np.float32)
    facts, tensors = as_gguf(own, "llama")
    facts |= {
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["~ ~"],
        "tokenizer.ggml.token_type": [1] * len(alphabet()) + [3] * len(SPECIAL) + [1],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        write_gguf(path, "llama", facts, tensors)
        return regard.models.load(path)
