"""Models in GGUF files, whose metadata describe the architecture and the tokenizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import file_path, listed
from regard._cli.models._gguf_tokenizer import tokenizer_of
from regard._cli.models._model import Model, ParameterNames, embedded, spans
from regard._runtime.optional import needed
from regard.checkpoints._gguf import GgufFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._cli.models._model import Array

# Decoders with RMS norms before attention and before a gated feed-forward layer, and whether the
# rows of their projections are ordered so that neighboring columns are rotated. Mistral uses the
# name of Llama.
_INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
_NAMES = ParameterNames(
    needed={
        "norm": "attn_norm.weight",
        "query": "attn_q.weight",
        "key": "attn_k.weight",
        "value": "attn_v.weight",
        "output": "attn_output.weight",
        "feed_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
    },
    optional={
        "query_bias": "attn_q.bias",
        "key_bias": "attn_k.bias",
        "value_bias": "attn_v.bias",
        "query_norm": "attn_q_norm.weight",
        "key_norm": "attn_k_norm.weight",
    },
    unknown=("attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"),
)
_EMBEDDING, _FACTORS = "token_embd.weight", "rope_freqs.weight"


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like a GGUF file."""
    with open(file_path(path), "rb") as file:
        return file.read(4) == b"GGUF"


def open_gguf(path: str | os.PathLike[str], **tokenizer: Any) -> Model:
    """Return the model of a GGUF file.

    Parameters are read layer by layer, and quantized parameters become float32. Entries of
    `tokenizer` replace the metadata entries that begin with "tokenizer.ggml.". Raises OSError if
    the file is unreadable, and ValueError if it is damaged, is one of several parts, does not
    contain a model of the Llama family, or has a tokenizer of another kind.
    """
    name = file_path(path)
    for module in ("gguf", "tokenizers"):
        needed(module, "a model's file", "models")
    file = GgufFile(name)
    metadata = file.metadata | {f"tokenizer.ggml.{key}": each for key, each in tokenizer.items()}
    facts = _Facts(name, metadata)
    if facts.get("split.count", int, 1) > 1:
        raise ValueError(f"{name} is one of {metadata['split.count']} parts: join them first")
    if facts.own("expert_count", int, 0):
        raise ValueError(f"{name} must have one feed-forward layer per block, got experts")
    heads = facts.own("attention.head_count", int)
    kv_heads = facts.own("attention.head_count_kv", int, heads)
    width = facts.own("embedding_length", int)
    head_dim = facts.own("attention.key_length", int, width // heads)
    layers = facts.own("block_count", int)
    window = facts.own("attention.sliding_window", int, 0) or None
    embedding = file.parameters(_EMBEDDING)[_EMBEDDING]
    rows = {"query": heads * head_dim, "key": kv_heads * head_dim, "value": kv_heads * head_dim}
    encoder = tokenizer_of(name, metadata)

    def of_layer(layer: int) -> Mapping[str, Array]:
        start = f"blk.{layer}."
        return _NAMES.read(name, start, file.parameters(start), rows, width)

    def tokens(text: str) -> tuple[list[int], list[str]]:
        encoding = encoder.encode(text)
        return encoding.ids, spans(text, encoding)

    return Model(
        name=facts.get("general.name", str, os.path.basename(name)),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=facts.own("attention.layer_norm_rms_epsilon", float),
        rotary=_rotary(facts, file, head_dim),
        interleaved=_INTERLEAVED[facts.architecture],
        windows=(window,) * layers,
        embed=lambda numbers: embedded(f"{name}: the tokenizer", embedding, numbers),
        parameters=of_layer,
        tokens=tokens,
    )


class _Facts:
    """The metadata of a file, checked as they are read."""

    def __init__(self, name: str, metadata: Mapping[str, Any]) -> None:
        self._name, self._metadata = name, metadata
        self.architecture = self.get("general.architecture", str, "")
        if self.architecture not in _INTERLEAVED:
            raise ValueError(
                f"{name}: general.architecture must be one of {listed(_INTERLEAVED)}, got "
                f"{self.architecture!r}"
            )

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return an entry of this type; a number is positive unless it is the default."""
        value = self._metadata.get(key, default)
        if key not in self._metadata and default is not None:
            return default
        is_right = isinstance(value, kind) and not isinstance(value, bool)
        if not is_right or (kind is not str and not 0 < value < 2**53 and value != default):
            raise ValueError(
                f"{self._name}: {key} must be a {'positive ' * (kind is not str)}{kind.__name__}, "
                f"got {value!r}"
            )
        return value

    def own(self, key: str, kind: type, default: Any = None) -> Any:
        """Return an entry of the architecture."""
        return self.get(f"{self.architecture}.{key}", kind, default)


def _rotary(facts: _Facts, file: GgufFile, head_dim: int) -> dict[str, Any]:
    """Return the options of the rotary embedding."""
    rotated = facts.own("rope.dimension_count", int, head_dim)
    if rotated != head_dim:
        raise ValueError(
            f"{file.name}: rope.dimension_count must be head_dim, {head_dim}, got {rotated}"
        )
    base = facts.own("rope.freq_base", float, 10_000.0)
    kind = facts.own("rope.scaling.type", str, "none")
    if _FACTORS in file.names:
        # Llama 3.1 stores the divisor of each frequency.
        factors = file.parameters(_FACTORS)[_FACTORS].astype(np.float64)
        frequencies = base ** -(np.arange(0, head_dim, 2) / head_dim)
        if factors.shape != frequencies.shape:
            raise ValueError(
                f"{file.name}: {_FACTORS} must have shape {frequencies.shape}, got {factors.shape}"
            )
        return {"inverse_frequencies": frequencies / factors}
    options: dict[str, Any] = {"head_dim": head_dim, "base": base}
    if kind in ("linear", "yarn"):
        options["scaling"] = {"rope_type": kind, "factor": facts.own("rope.scaling.factor", float)}
        if kind == "yarn":
            trained = facts.own("rope.scaling.original_context_length", int)
            options["scaling"]["original_max_position_embeddings"] = trained
    elif kind != "none":
        raise ValueError(
            f"{file.name}: rope.scaling.type must be one of none, linear, yarn, got {kind!r}"
        )
    return options
