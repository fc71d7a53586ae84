"""Layers written out on whole arrays: analytic functions of the parameters and the inputs, which
accept complex numbers (see `reference.derivatives`)."""

import numpy as np

import reference
import regard


def attention(query, key, value, mask=None, *, distance_bias=None, **options):
    """Return the output and the weights of attention with heads."""
    table = 0.0 if distance_bias is None else distance_bias
    precision = np.result_type(query, key, value, table, float).type
    options |= {"distance_bias": distance_bias, "precision": precision}
    return reference.attention(query, key, value, mask, **options)[:2]


def naive(*arrays, **options):
    """Attend in NumPy in the precision of the arrays, which is the yardstick for rounding."""
    return reference.naive(*arrays, **options)[:2]


def linear(x, state, name):
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def rotated(x, positions, options):
    """Rotate complex numbers. Rotation is linear, so it turns real and imaginary parts alike."""
    real = regard.positional.rotary(x.real, positions, **options)
    if np.isrealobj(x):
        return real
    return real + 1j * regard.positional.rotary(x.imag, positions, **options)


def multi_head(
    state,
    query,
    key=None,
    value=None,
    *,
    heads,
    kv_heads=None,
    attend=attention,
    rotary=None,
    eps=1e-6,
    norm_offset=0,
    head_gates=None,
    **options,
):
    """Return the output and the weights of `MultiHeadAttention` with these parameters."""
    key = query if key is None else key
    value = key if value is None else value
    projected = []
    counts = (heads, kv_heads or heads, kv_heads or heads)
    for x, name, count in zip((query, key, value), ("query", "key", "value"), counts, strict=True):
        product = linear(x, state, f"W_{name}")
        split = product.reshape(*product.shape[:-1], count, product.shape[-1] // count)
        if f"{name[0]}_norm.weight" in state:
            mean = (split * split).mean(axis=-1, keepdims=True)
            split = split / np.sqrt(mean + eps) * (norm_offset + state[f"{name[0]}_norm.weight"])
        projected.append(split.swapaxes(-2, -3))
    q, k, v = projected
    if rotary is not None:
        offset = np.asarray(options.get("query_offset", 0))
        q = rotated(q, offset[..., None] + np.arange(q.shape[-2]), rotary)
        k = rotated(k, np.arange(k.shape[-2]), rotary)
    if "distance_bias" in state:
        options = options | {"distance_bias": state["distance_bias"]}
    output, weights = attend(q, k, v, **options)
    for gates in (head_gates, state.get("head_gates")):
        if gates is not None:
            output = output * np.broadcast_to(gates, output.shape[:-2])[..., None, None]
    output = output.swapaxes(-2, -3)
    joined = output.reshape(*output.shape[:-2], output.shape[-2] * output.shape[-1])
    return linear(joined, state, "out_proj"), weights


def self_attention(state, x, mask=None, **options):
    """Return the output and the weights of `SelfAttention` with these parameters."""
    if "W_query" in state:
        query, key, value = (x @ state[f"W_{name}"] for name in ("query", "key", "value"))
    else:
        query, key, value = (linear(x, state, f"W_{name}") for name in ("query", "key", "value"))
    heads = (array[..., None, :, :] for array in (query, key, value))
    mask = mask[..., None, :, :] if mask is not None and mask.ndim > 2 else mask
    return tuple(part[..., 0, :, :] for part in attention(*heads, mask, **options))
