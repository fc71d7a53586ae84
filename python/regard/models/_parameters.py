"""The parameters of a model, under names that do not depend on the kind of file."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.numbers import listed
from regard.checkpoints._file import UnreadableTensorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from regard._weights.quantized import Weight
    from regard.checkpoints._file import ParameterFile

    Array = NDArray[np.float32]

# The places in the following pairs.
GGUF, HUGGING_FACE = 0, 1
_START = ("blk.{}.", "model.layers.{}.")
_EMBEDDING = ("token_embd.weight", "model.embed_tokens.weight")
_NORM = ("output_norm.weight", "model.norm.weight")
_HEAD = ("output.weight", "lm_head.weight")  # or the embedding, if a file has none
_LAYER = {
    "norm": ("attn_norm", "input_layernorm"),
    "query": ("attn_q", "self_attn.q_proj"),
    "key": ("attn_k", "self_attn.k_proj"),
    "value": ("attn_v", "self_attn.v_proj"),
    "output": ("attn_output", "self_attn.o_proj"),
    "feed_norm": ("ffn_norm", "post_attention_layernorm"),
    "gate": ("ffn_gate", "mlp.gate_proj"),
    "up": ("ffn_up", "mlp.up_proj"),
    "down": ("ffn_down", "mlp.down_proj"),
    "query_norm": ("attn_q_norm", "self_attn.q_norm"),
    "key_norm": ("attn_k_norm", "self_attn.k_norm"),
}
_OPTIONAL = ("query_norm", "key_norm")
_WITH_BIAS = ("query", "key", "value")
_WITHOUT_BIAS = ("output", "gate", "up", "down")


class Sizes(NamedTuple):
    """The description of a decoder of the Llama family."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    epsilon: float  # of the norms
    rotary: Mapping[str, Any]  # options of `regard.positional.rotary`
    windows: tuple[int | None, ...]  # visible tokens per layer, including the query's
    context_length: int | None  # tokens for which the model was trained
    end_tokens: frozenset[int]


class Parameters:
    """The parameters of a model, which are read on request, matrices as `weight_dtype`."""

    def __init__(
        self,
        file: ParameterFile,
        kind: int,
        sizes: Sizes,
        weight_dtype: str | None,
    ) -> None:
        self._file, self._kind, self._sizes = file, kind, sizes
        self._weight_dtype = weight_dtype
        self.size = sum(math.prod(each.shape) for each in file.tensors.values())
        self.tokens = self._shape(_EMBEDDING[kind])[0]

    @cached_property
    def whole(self) -> tuple[Any, Any, Any]:
        """The vector of each token, the weight of the last norm, and the weight for logits."""
        sizes, kind = self._sizes, self._kind
        embedding = self._read(_EMBEDDING[kind], (self.tokens, sizes.width))
        norm = self._read(_NORM[kind], (sizes.width,))
        if _HEAD[kind] not in self._file.tensors:
            return embedding, norm, embedding
        return embedding, norm, self._read(_HEAD[kind], (self.tokens, sizes.width))

    def layer(self, number: int) -> dict[str, Any]:
        """Return the weights of a layer by the names of `_LAYER`, and biases as "query_bias".

        Raises ValueError for parameters that are missing, not supported, or of other shapes.
        """
        start, sizes, known = _START[self._kind].format(number), self._sizes, self._file.tensors
        names = {own: start + pair[self._kind] for own, pair in _LAYER.items()}
        weights = {own: f"{name}.weight" for own, name in names.items()}
        required = [weights[own] for own in _LAYER if own not in _OPTIONAL]
        missing = [name for name in required if name not in known]
        # They would change the results.
        unknown = [f"{names[own]}.bias" for own in _WITHOUT_BIAS if f"{names[own]}.bias" in known]
        if missing or unknown:
            raise ValueError(
                f"{self._file.name}: layer {number} must have the parameters of a Llama model, got "
                f"missing: {listed(missing)}, unexpected: {listed(unknown)}"
            )
        rows, shared = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        shapes = {
            "query": (rows, sizes.width),
            "key": (shared, sizes.width),
            "value": (shared, sizes.width),
            "output": (sizes.width, rows),
        }
        given = weights | {f"{own}_bias": f"{names[own]}.bias" for own in _WITH_BIAS}
        return {
            own: self._read(name, shapes.get(own)) for own, name in given.items() if name in known
        }

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._file.tensors:
            raise ValueError(f"{self._file.name}: the file must have the parameter {name}")
        return self._file.tensors[name].shape

    def _read(self, name: str, shape: tuple[int, ...] | None) -> Weight:
        found = self._shape(name)
        if shape is not None and found != shape:
            raise ValueError(f"{self._file.name}: {name} must have shape {shape}, got {found}")
        try:
            weight = self._file.read(name, self._weight_dtype)
        except UnreadableTensorError as error:
            raise ValueError(f"{self._file.name}: tensor {name!r} {error}") from None
        if isinstance(weight, np.ndarray) and weight.dtype == np.float64:
            return weight.astype(np.float32)
        return weight
