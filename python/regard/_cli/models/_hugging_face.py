"""Models in Hugging Face files: model.safetensors, config.json and tokenizer.json."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import count, file_path, finite_number, listed
from regard._cli.models._model import Model, ParameterNames, embedded, spans
from regard._runtime.optional import needed
from regard.checkpoints import load_safetensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._cli.models._model import Array

# Decoders with RMS norms before attention and before a gated feed-forward layer.
_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_BESIDE = "the model's file needs its config.json and tokenizer.json next to it"
_EMBEDDING = "model.embed_tokens.weight"
_NAMES = ParameterNames(
    needed={
        "norm": "input_layernorm.weight",
        "query": "self_attn.q_proj.weight",
        "key": "self_attn.k_proj.weight",
        "value": "self_attn.v_proj.weight",
        "output": "self_attn.o_proj.weight",
        "feed_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
    },
    optional={
        "query_bias": "self_attn.q_proj.bias",
        "key_bias": "self_attn.k_proj.bias",
        "value_bias": "self_attn.v_proj.bias",
        "query_norm": "self_attn.q_norm.weight",
        "key_norm": "self_attn.k_norm.weight",
    },
    unknown=(
        "self_attn.o_proj.bias",
        "mlp.gate_proj.bias",
        "mlp.up_proj.bias",
        "mlp.down_proj.bias",
    ),
)


def open_hugging_face(path: str | os.PathLike[str]) -> Model:
    """Return the model of a safetensors file and the configuration and tokenizer files next to it.

    Parameters are read layer by layer. Raises OSError if a file is missing or unreadable, and
    ValueError if the model does not belong to the Llama family.
    """
    name = file_path(path)
    for module in ("safetensors", "tokenizers"):
        needed(module, "a model's file", "models")
    folder = os.path.dirname(name)
    config = _config(os.path.join(folder, "config.json"))
    tokenizer = _tokenizer(os.path.join(folder, "tokenizer.json"))
    embedding = load_safetensors(name, prefix=_EMBEDDING)[0][_EMBEDDING]
    layers, heads, kv_heads, head_dim = (
        config[key]
        for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    rows = {"query": heads * head_dim, "key": kv_heads * head_dim, "value": kv_heads * head_dim}

    def of_layer(layer: int) -> Mapping[str, Array]:
        start = f"model.layers.{layer}."
        stored, _ = load_safetensors(name, prefix=start)
        return _NAMES.read(name, start, stored, rows, embedding.shape[1])

    def tokens(text: str) -> tuple[list[int], list[str]]:
        encoding = tokenizer.encode(text)
        return encoding.ids, spans(text, encoding)

    return Model(
        name=os.path.basename(os.path.dirname(os.path.abspath(name))),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=finite_number("config.json's rms_norm_eps", config["rms_norm_eps"], 0),
        rotary={"head_dim": head_dim, **_rotary(config)},
        interleaved=False,
        windows=_windows(config, layers),
        embed=lambda numbers: embedded(f"{folder}: tokenizer.json", embedding, numbers),
        parameters=of_layer,
        tokens=tokens,
    )


def _config(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {_BESIDE}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type not in _MODEL_TYPES:
        raise ValueError(
            f"{path}: model_type must be one of {listed(_MODEL_TYPES)}, got {model_type!r}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act must be 'silu', got {config['hidden_act']!r}")
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "rms_norm_eps"):
        if key not in config:
            raise ValueError(f"{path}: {key} must be present, got a configuration without it")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    if config.get("head_dim") is None:
        config["head_dim"] = config["hidden_size"] // max(config["num_attention_heads"], 1)
    for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"):
        config[key] = count(f"{path}'s {key}", config[key], minimum=1)
    checked: dict[str, Any] = config
    return checked


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the rotary embedding, from either of two configuration formats."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    options: dict[str, Any] = {}
    if "rope_theta" in config:
        options["base"] = config["rope_theta"]
    if scaling:
        longest = config.get("max_position_embeddings")
        options["scaling"] = {"max_position_embeddings": longest, **scaling}
        if "rope_theta" in scaling:
            options.pop("base", None)
    return options


def _windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    kinds = config.get("layer_types") or ["sliding_attention"] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _tokenizer(path: str) -> Any:
    library = needed("tokenizers", "a model's file", "models")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} is missing: {_BESIDE}")
    try:
        return library.Tokenizer.from_file(path)
    except Exception as error:  # the library raises no more specific type
        raise ValueError(f"{path} is not a tokenizer's file: {error}") from None
