"""Layers written out on whole arrays, and their exact derivatives.

Everything here is an analytic function of the parameters and the inputs, and accepts complex
numbers. A step of i h along one number changes the result by i h times the derivative, to the last
bits, since nothing is subtracted (Squire and Trapp 1998, "Using Complex Variables to Estimate
Derivatives of Real Functions").
"""

import numpy as np

import regard
from philox import dropout_factors
from reference import lay_out

STEP = 1e-40


def attention(
    query,
    key,
    value,
    mask=None,
    *,
    dropout_p=0.0,
    dropout_seed=0,
    distance_bias=None,
    **options,
):
    """Return the output of attention with heads."""
    shapes = (np.zeros(x.shape) for x in (query, key, value))
    table = None if distance_bias is None else np.asarray(distance_bias)
    real = None if table is None else table.real
    laid = lay_out(*shapes, mask, **options, distance_bias=real, precision=np.float64)
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    scores = laid.cap(laid.factor * (query @ key.swapaxes(-1, -2))) - laid.alibi + laid.bias
    if table is not None:
        imaginary = np.broadcast_to(table.imag, (*laid.columns.shape[:-2], table.shape[-1]))
        scores = scores + 1j * np.take_along_axis(imaginary[..., None, :], laid.columns, axis=-1)
    sinks = laid.sinks[:, None, None]
    top = np.max(scores.real, axis=-1, keepdims=True, where=laid.seen, initial=-np.inf)
    top = np.maximum(top, sinks)
    top = np.where(top == -np.inf, 0, top)
    terms = np.where(laid.seen, np.exp(np.where(laid.seen, scores - top, 0)), 0)
    total = terms.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
    weights = terms / np.where(total == 0, 1, total)
    if dropout_p:
        places = {"query_offset": options.get("query_offset", 0)}
        weights = weights * dropout_factors(weights.shape, p=dropout_p, seed=dropout_seed, **places)
    return weights @ value


def linear(x, state, name):
    product = x @ state[f"{name}.weight"].T
    return product + state[f"{name}.bias"] if f"{name}.bias" in state else product


def rotated(x, positions, options):
    """Rotate complex numbers. Rotation is linear, so it turns real and imaginary parts alike."""
    turn = (regard.positional.rotary(part, positions, **options) for part in (x.real, x.imag))
    real, imaginary = turn
    return real + 1j * imaginary


def multi_head(
    state,
    query,
    key=None,
    value=None,
    *,
    heads,
    kv_heads=None,
    rotary=None,
    eps=1e-6,
    norm_offset=0,
    head_gates=1.0,
    **options,
):
    """Return the output of `MultiHeadAttention` with these parameters."""
    key = query if key is None else key
    value = key if value is None else value
    projected = []
    counts = (heads, kv_heads or heads, kv_heads or heads)
    for x, name, count in zip((query, key, value), ("query", "key", "value"), counts, strict=True):
        product = linear(x, state, f"W_{name}")
        split = product.reshape(*product.shape[:-1], count, -1)
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
    output = attention(q, k, v, **options)
    for gates in (head_gates, state.get("head_gates", 1.0)):
        output = output * np.broadcast_to(gates, output.shape[:-2])[..., None, None]
    output = output.swapaxes(-2, -3)
    return linear(output.reshape(*output.shape[:-2], -1), state, "out_proj")


def self_attention(state, x, mask=None, **options):
    """Return the output of `SelfAttention` with these parameters; `mask` has an axis of heads."""
    if "W_query" in state:
        query, key, value = (x @ state[f"W_{name}"] for name in ("query", "key", "value"))
    else:
        query, key, value = (linear(x, state, f"W_{name}") for name in ("query", "key", "value"))
    heads = (array[..., None, :, :] for array in (query, key, value))
    return attention(*heads, mask, **options)[..., 0, :, :]


def derivatives(function, grad, arrays):
    """Return the gradient of ``sum(grad * function(arrays))`` for each of the named arrays."""
    arrays = {name: np.array(array, complex) for name, array in arrays.items()}
    result = {}
    for name, array in arrays.items():
        result[name] = np.empty(array.shape)
        for place in np.ndindex(array.shape):
            array[place] += 1j * STEP
            result[name][place] = (grad * function(arrays)).imag.sum() / STEP
            array[place] = array[place].real
    return result
