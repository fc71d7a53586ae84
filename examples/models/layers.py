"""The parts that the models share: linear layers, norms, activations, splitting into heads."""

import math

import numpy as np

import regard


def linear(x, weight, bias=None):
    """Apply a layer whose weight is ``(out_features, in_features)`` to the last axis.

    The weight is an array of float32, float16 or bfloat16, or a regard.QuantizedWeight. The product
    uses regard instead of NumPy, whose threads would interfere with the threads of attention.
    """
    y = regard.matmul(x.reshape(-1, x.shape[-1]), weight.T)
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:-1], y.shape[-1])


def layer_norm(x, weight, bias, epsilon):
    """Normalize each row to mean 0 and variance 1, then scale and shift it."""
    centered = x - x.mean(-1, keepdims=True)
    variance = np.square(centered).mean(-1, keepdims=True)
    return centered / np.sqrt(variance + epsilon) * weight + bias


# The normal distribution function, 1/2 (1 + erf(x / sqrt 2)). NumPy has no erf; interpolating
# linearly between this many points is off by 2e-9 at most, far less than float32's rounding.
_AT = np.linspace(-8, 8, 1 << 16)
_BELOW = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in _AT])


def gelu(x):
    """Multiply by the normal distribution function (the exact GELU, not the tanh form)."""
    return x * np.interp(x, _AT, _BELOW).astype(x.dtype)


def split_heads(x, heads):
    """Reshape ``(batch, length, heads * dim)`` to ``(batch, heads, length, dim)``."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def join_heads(x):
    """Reshape ``(batch, heads, length, dim)`` to ``(batch, length, heads * dim)``."""
    batch, heads, length, dim = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * dim)
