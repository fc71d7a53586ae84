"""Layers in train mode, and their gradients."""

import numpy as np

import regard
from reference import assert_same_bits, largest

D, HEADS, DIM = 6, 4, 4


def normal(shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def multi_head(dtype=np.float64, **options):
    """Return a layer whose norms, gates and biases of distances are drawn: their initial 1 and 0
    would hide whether they are used."""
    layer = regard.MultiHeadAttention(D, HEADS, head_dim=DIM, rng=1, dtype=dtype, **options)
    for seed, (parameter, array) in enumerate(layer.parameters().items()):
        if "norm" in parameter or parameter in ("distance_bias", "head_gates"):
            array += 0.3 * normal(array.shape, seed)
    return layer


EVERYTHING = {
    "qk_norm": 0.1, "rotary": {"interleaved": True, "rotary_dim": 2}, "num_kv_heads": 2,
    "window": (3, 1), "alibi": True, "qkv_bias": True, "out_bias": True, "distance_bias": 3,
    "head_gates": True,
}  # fmt: skip


def many_heads(dtype=np.float32, **options):
    return multi_head(dtype, **EVERYTHING, **options).train()


def one_head(dtype=np.float32, **options):
    return regard.SelfAttention(D, 5, qkv_bias=True, rng=1, dtype=dtype, **options).train()


def output_like(layer, x):
    """Return a gradient for the output."""
    return normal(layer(x).shape, 8)


def gradients_of(layer, x, grad, **options):
    """Return all gradients of one call, by name."""
    layer.zero_grads()
    layer(x, **options)
    return {"x": layer.backward(grad)} | layer.grads


def assert_same_arrays(actual, wanted):
    assert list(actual) == list(wanted)
    for name, array in wanted.items():
        assert_same_bits(actual[name], array)


def assert_near(actual, wanted, dtype):
    """Compare differences with the largest element, whose rounding affects all others. NaN are
    derivatives that were not computed."""
    limit = 1e-13 if dtype == np.float64 else 4e-6
    assert actual.dtype == dtype
    assert actual.shape == wanted.shape
    assert np.isfinite(actual).all()
    wanted = np.where(np.isnan(wanted), actual, wanted)
    assert largest(actual - wanted) <= limit * max(1.0, largest(wanted))
