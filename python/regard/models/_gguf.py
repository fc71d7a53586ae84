"""Models in GGUF files, whose metadata describe the architecture and the tokenizer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import listed
from regard.checkpoints._gguf import GgufFile
from regard.models._gguf_tokenizer import tokenizer_of
from regard.models._parameters import GGUF, Parameters, Sizes

if TYPE_CHECKING:
    from collections.abc import Mapping

# Decoders with RMS norms before attention and before a gated feed-forward layer, and whether the
# rows of their projections are ordered so that neighboring columns are rotated. Mistral uses the
# name of Llama.
_INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
_FACTORS = "rope_freqs.weight"


def open_gguf(
    name: str, weight_dtype: str | None, tokenizer: Mapping[str, Any]
) -> tuple[Sizes, Parameters, Any]:
    """Return the model of a GGUF file.

    Entries of `tokenizer` replace the metadata entries that begin with "tokenizer.ggml.". Raises
    ValueError if the file is damaged, is one of several parts, does not contain a model of the
    Llama family, or has a tokenizer of another kind.
    """
    file = GgufFile(name)
    metadata = file.metadata | {f"tokenizer.ggml.{key}": each for key, each in tokenizer.items()}
    facts = _Facts(name, metadata)
    if facts.get("split.count", int, 1) > 1:
        raise ValueError(f"{name} is one of {metadata['split.count']} parts: join them first")
    if facts.own("expert_count", int, 0):
        raise ValueError(f"{name} must have one feed-forward layer per block, got experts")
    heads = facts.own("attention.head_count", int)
    width = facts.own("embedding_length", int)
    head_dim = facts.own("attention.key_length", int, width // heads)
    layers = facts.own("block_count", int)
    ends = (metadata.get(f"tokenizer.ggml.{each}_token_id") for each in ("eos", "eot", "eom"))
    sizes = Sizes(
        name=facts.get("general.name", str, os.path.basename(name)),
        layers=layers,
        heads=heads,
        kv_heads=facts.own("attention.head_count_kv", int, heads),
        head_dim=head_dim,
        width=width,
        epsilon=facts.own("attention.layer_norm_rms_epsilon", float),
        rotary=_rotary(facts, file, head_dim) | {"interleaved": _INTERLEAVED[facts.architecture]},
        windows=(facts.own("attention.sliding_window", int, 0) or None,) * layers,
        context_length=facts.own("context_length", int, 0) or None,
        end_tokens=frozenset(end for end in ends if isinstance(end, int)),
    )
    parameters = Parameters(file, GGUF, sizes, weight_dtype)
    return sizes, parameters, tokenizer_of(name, metadata)


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
    if _FACTORS in file.tensors:
        # Llama 3.1 stores the divisor of each frequency.
        factors: Any = file.read(_FACTORS, None)
        frequencies = base ** -(np.arange(0, head_dim, 2) / head_dim)
        if factors.shape != frequencies.shape:
            raise ValueError(
                f"{file.name}: {_FACTORS} must have shape {frequencies.shape}, got {factors.shape}"
            )
        return {"inverse_frequencies": frequencies / factors.astype(np.float64)}
    options: dict[str, Any] = {"base": base}
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
