"""Models in Hugging Face folders: model.safetensors, config.json and tokenizer.json."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import count, finite_number, listed
from regard._runtime.public import needed
from regard.checkpoints._file import json_object
from regard.checkpoints._safetensors import open_safetensors
from regard.models._parameters import HUGGING_FACE, Parameters, Sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

# Decoders with RMS norms before attention and before a gated feed-forward layer.
_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def open_hugging_face(name: str, weight_dtype: str | None) -> tuple[Sizes, Parameters, Any]:
    """Return the model of a folder, or of a safetensors file or an index in it.

    Raises OSError if a file is missing or unreadable, and ValueError if the model does not belong
    to the Llama family.
    """
    folder = name if os.path.isdir(name) else os.path.dirname(name)
    beside = [os.path.join(folder, each) for each in ("config.json", "tokenizer.json")]
    for path in beside:
        if not os.path.isfile(path):
            raise FileNotFoundError(
                f"{path} is missing: the model's file needs its config.json and tokenizer.json "
                "next to it"
            )
    config, tokenizer = _config(beside[0]), _tokenizer(beside[1])
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    layers = config["num_hidden_layers"]
    sizes = Sizes(
        name=os.path.basename(os.path.abspath(folder)),
        layers=layers,
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        width=config["hidden_size"],
        epsilon=finite_number("config.json's rms_norm_eps", config["rms_norm_eps"], 0),
        rotary=_rotary(config),
        windows=_windows(config, layers),
        context_length=config.get("max_position_embeddings"),
        end_tokens=frozenset(end for end in ends if isinstance(end, int)),
    )
    file = open_safetensors(name)
    return sizes, Parameters(file, HUGGING_FACE, sizes, weight_dtype), tokenizer


def _config(path: str) -> dict[str, Any]:
    """Return a configuration with defaults, or raise OSError, TypeError or ValueError."""
    config = json_object(path)
    if config.get("model_type") not in _MODEL_TYPES:
        raise ValueError(
            f"{path}: model_type must be one of {listed(_MODEL_TYPES)}, got "
            f"{config.get('model_type')!r}"
        )
    if config.get("quantization_config"):  # the weights would need scales from other tensors
        raise ValueError(
            f"{path}: the parameters must be floats, got a model with a quantization_config: "
            "download the unquantized model, or a GGUF file of it"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{path}: hidden_act must be 'silu', got {config['hidden_act']!r}")
    for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "rms_norm_eps"):
        if key not in config:
            raise ValueError(f"{path}: {key} must be present, got a configuration without it")
        if key != "rms_norm_eps":
            config[key] = count(f"{path}'s {key}", config[key], minimum=1)
    heads = config["num_attention_heads"]
    for key, default in (
        ("num_key_value_heads", heads),
        ("head_dim", config["hidden_size"] // heads),
    ):
        given = config.get(key)
        config[key] = count(f"{path}'s {key}", default if given is None else given, minimum=1)
    return config


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
    """Return the window of each layer, by the rules of the model's class in transformers."""
    kind, window, kinds = config["model_type"], config.get("sliding_window"), None
    if kind == "llama" or (kind != "mistral" and not config.get("use_sliding_window")):
        window = None
    if window is not None:
        window = count("config.json's sliding_window", window, minimum=1)
    if kind != "mistral":  # whose layers are alike
        kinds = config.get("layer_types")
    if kinds is None:
        full = 0 if kind == "mistral" else min(config.get("max_window_layers", 28), layers)
        kinds = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
    if len(kinds) != layers:
        raise ValueError(
            f"config.json's layer_types must have one entry for each of {layers} layers, got "
            f"{len(kinds)}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _tokenizer(path: str) -> Any:
    library = needed("tokenizers", "a model's file", "models")
    try:
        return library.Tokenizer.from_file(path)
    except Exception as error:  # the library raises no more specific type
        raise ValueError(f"{path} is not a tokenizer's file: {error}") from None
