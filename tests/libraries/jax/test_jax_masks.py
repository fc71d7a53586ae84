"""Sparse masks in the call on JAX arrays give the bits of dense masks, under every
transformation."""

import numpy as np
import pytest

import regard
from gradient_cases import drawn
from reference import assert_same_bits
from sparse_cases import NAMES, dense, in_turn, sparse_masks

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard.jax  # noqa: E402

attend = regard.jax.scaled_dot_product_attention
BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 21, 60
SHAPES = (BATCH, HEADS, Q_LEN, 8), (BATCH, 2, KV_LEN, 8), (BATCH, 2, KV_LEN, 5)
ARRAYS = [drawn(shape, np.float32, i) for i, shape in enumerate(SHAPES)]
BIAS = drawn((HEADS, Q_LEN, KV_LEN), np.float32, 5)
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
OPTIONS = {
    "plain": {},
    "scores": {"softcap": 2.0, "sinks": [0.5, -1.0, 2.0, 0.0], "is_causal": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
}
MODES = {
    "now": lambda function: function,
    "jit": jax.jit,
    "vmap": lambda function: jax.jit(jax.vmap(function)),
}


def numbers(tree):
    return tuple(np.asarray(each) for each in jax.tree.leaves(tree))


@pytest.mark.parametrize(("name", "mode", "scores"), in_turn(NAMES, MODES, OPTIONS))
def test_the_bits_of_the_dense_mask(name, mode, scores):
    arrays, options = ARRAYS, OPTIONS[scores]
    if mode == "vmap":
        arrays = [np.stack([x, x + 1, -x]) for x in ARRAYS]
    for with_bias in (False, True):
        results = []
        for shown in (MASKS[name], dense(MASKS[name], KV_LEN)):
            mask = (shown, BIAS) if with_bias else shown

            def call(query, key, value, mask=mask):
                return attend(query, key, value, mask, return_lse=True, **options)

            results.append(numbers(MODES[mode](call)(*arrays)))
        assert_same_bits(*results)


def loss(mask, options):
    def function(query, key, value, bias):
        given = mask if bias is None else (mask, bias)
        output, lse = attend(query, key, value, given, return_lse=True, **options)
        return (output**2).sum() + jnp.sin(jnp.where(jnp.isfinite(lse), lse, 0)).sum()

    return function


@pytest.mark.parametrize(("name", "mode", "scores"), in_turn(NAMES, ["jit", "vmap"], OPTIONS))
def test_the_gradients_of_the_dense_mask(name, mode, scores):
    arrays, options = [*ARRAYS, BIAS], OPTIONS[scores]
    if mode == "vmap":
        arrays = [np.stack([x, x + 1, -x]) for x in arrays]
    sparse, wanted = (
        numbers(MODES[mode](jax.grad(loss(mask, options), argnums=(0, 1, 2, 3)))(*arrays))
        for mask in (MASKS[name], dense(MASKS[name], KV_LEN))
    )
    assert_same_bits(sparse, wanted)


@pytest.mark.parametrize("name", ["ranges of entries", "blocks", "one query", "a view"])
def test_gradients_of_gradients(name):
    def penalty(mask):
        inner = jax.grad(loss(mask, {}))
        return jax.jit(jax.grad(lambda *arrays: (inner(*arrays, None) ** 2).sum(), argnums=(0, 1)))

    sparse, wanted = (
        numbers(penalty(mask)(*ARRAYS)) for mask in (MASKS[name], dense(MASKS[name], KV_LEN))
    )
    for one, other in zip(sparse, wanted, strict=True):
        assert np.abs(other).max() > 0
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("name", NAMES)
def test_without_64_bits(name):
    """Numbers of keys and spans are still passed in full."""
    with jax.enable_x64(False):
        actual = jax.jit(lambda query: attend(query, *ARRAYS[1:], MASKS[name]))(ARRAYS[0])
        wanted = attend(*ARRAYS, dense(MASKS[name], KV_LEN))
        assert_same_bits(np.asarray(actual), np.asarray(wanted))


def test_other_shapes():
    """Arrays may have no heads, and masks fewer axes than the batch."""
    query, key, value = (x[0, 0] for x in ARRAYS)
    wanted = regard.scaled_dot_product_attention(query, key, value, MASKS["ranges"])
    assert_same_bits(np.asarray(attend(query, key, value, MASKS["ranges"])), wanted)
    deep = [np.stack([x, 2 * x, -x]) for x in ARRAYS]
    for name in NAMES:
        wanted = regard.scaled_dot_product_attention(*deep, MASKS[name])
        assert_same_bits(np.asarray(attend(*deep, MASKS[name])), wanted)
    nothing = attend(query[:0], key, value, MASKS["ranges"][:0])
    assert nothing.shape == (0, 5)
    no_keys = attend(query, key[:0], value[:0], MASKS["ranges"][:, :0])
    assert not np.asarray(no_keys).any()


def test_a_mask_is_no_argument_of_a_transformed_function():
    with pytest.raises(TypeError):
        jax.jit(attend)(*ARRAYS, MASKS["ranges"])
