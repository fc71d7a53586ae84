"""The forward pass of a Llama model, up to the last requested queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._attention.dense import scaled_dot_product_attention
from regard.layers._linear import project
from regard.layers._norms import normalize
from regard.positional import rotary, rotary_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from regard._cli.models._model import Array, Model


def queries_and_keys(
    model: Model,
    tokens: list[int],
    progress: Callable[[int, int], object] | None = None,
    *,
    layers: Sequence[int] | None = None,
) -> tuple[list[Array], list[Array]]:
    """Return the rotated queries and keys (heads, length, head_dim) of each layer.

    `layers` are the numbers of the requested layers, in ascending order; by default, all layers.
    `progress` is called with the numbers of finished layers and of required layers.
    """
    x: Any = model.embed(np.array(tokens, np.int64))
    turns = rotary_cache(len(tokens), dtype=np.float32, **model.rotary)
    queries, keys = [], []
    wanted = range(model.layers) if layers is None else layers
    end = wanted[-1] + 1
    for layer in range(end):
        own = model.parameters(layer)
        normed = _normed(x, own["norm"], model.epsilon)
        query = _heads(normed, own, "query", model.heads, model)
        key = _heads(normed, own, "key", model.kv_heads, model)
        query, key = (
            rotary(each, cache=turns, interleaved=model.interleaved) for each in (query, key)
        )
        if layer in wanted:
            queries.append(query)
            keys.append(key)
        if layer + 1 < end:
            value = _heads(normed, own, "value", model.kv_heads, model)
            window = model.windows[layer]
            attended = scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                window=None if window is None else (window - 1, 0),
            )
            rows = attended.swapaxes(0, 1).reshape(len(tokens), -1)
            x = x + project(rows, own["output"], None, None)
            x = x + _fed_forward(_normed(x, own["feed_norm"], model.epsilon), own)
        if progress is not None:
            progress(layer + 1, end)
    return queries, keys


def _normed(x: Array, weight: Array, epsilon: float) -> Array:
    result = x.copy()
    normalize(result, epsilon)
    return np.multiply(result, weight, out=result)


def _heads(x: Array, own: Mapping[str, Array], name: str, heads: int, model: Model) -> Array:
    rows = project(x, own[name], own.get(f"{name}_bias"), None)
    split = rows.reshape(len(x), heads, model.head_dim).swapaxes(0, 1)
    norm = own.get(f"{name}_norm")
    return split if norm is None else _normed(split, norm, model.epsilon)


def _fed_forward(x: Array, own: Mapping[str, Array]) -> Array:
    gate = project(x, own["gate"], None, None)
    # The sigmoid is computed with tanh, which does not overflow.
    gate *= (0.5 * np.tanh(0.5 * gate) + 0.5).astype(gate.dtype)
    gate *= project(x, own["up"], None, None)
    return project(gate, own["down"], None, None)
