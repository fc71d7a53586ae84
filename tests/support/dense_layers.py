"""Layers written out on whole arrays, and their exact derivatives.

Everything here is an analytic function of the parameters and the inputs, and accepts complex
numbers. A step of i h along one number changes the result by i h times the derivative, to the last
bits, since nothing is subtracted (Squire and Trapp 1998, "Using Complex Variables to Estimate
Derivatives of Real Functions").
"""

import numpy as np

import reference
import regard
from philox import dropout_factors

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
    """Return the output and the weights of attention with heads."""
    shapes = (np.zeros(x.shape) for x in (query, key, value))
    table = None if distance_bias is None else np.asarray(distance_bias)
    real = None if table is None else table.real
    laid = reference.lay_out(*shapes, mask, **options, distance_bias=real, precision=np.float64)
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
    return weights @ value, weights


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


def derivatives(function, grad, arrays, most=None):
    """Return the gradient of ``sum(grad * function(arrays))`` for each of the named arrays.

    With `most`, it is computed for so many elements of each array, drawn, and the rest is NaN.
    """
    random = np.random.default_rng(0)
    arrays = {name: np.array(array, complex) for name, array in arrays.items()}
    result = {}
    for name, array in arrays.items():
        result[name] = np.full(array.shape, np.nan)
        places = list(np.ndindex(array.shape))
        if most is not None and len(places) > most:
            places = [places[i] for i in random.choice(len(places), most, replace=False)]
        for place in places:
            array[place] += 1j * STEP
            result[name][place] = (grad * function(arrays)).imag.sum() / STEP
            array[place] = array[place].real
    return result
