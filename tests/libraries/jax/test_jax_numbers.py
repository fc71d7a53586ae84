"""Numbers and arrays that arguments of a call on JAX arrays may be."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard  # noqa: E402
import regard.jax  # noqa: E402

attend = regard.jax.scaled_dot_product_attention
QUERY, KEY = np.zeros((2, 4, 3, 8), np.float32), np.zeros((2, 2, 5, 8), np.float32)
ARRAYS = QUERY, KEY, KEY


def test_pairs_and_texts_of_jax_and_numpy():
    wanted = attend(*ARRAYS, window=(2, 0), query_offset="end")
    for window in (np.array([2, 0]), jnp.array([2, 0]), range(2, -1, -2), [2, 0]):
        assert (attend(*ARRAYS, window=window, query_offset=np.str_("end")) == wanted).all()
    drops = {"dropout_p": 0.5, "dropout_seed": 3}
    wanted = attend(*ARRAYS, **drops, dropout_origin=(1, 0, 2))
    assert (attend(*ARRAYS, **drops, dropout_origin=np.array([1, 0, 2])) == wanted).all()


def test_numbers_of_jax_and_numpy_are_numbers():
    wanted = attend(*ARRAYS, scale=0.5, window=(2, 0), is_causal=True)
    for number in (np.float32, jnp.float32, np.array):
        actual = attend(*ARRAYS, scale=number(0.5), window=[np.int64(2), 0], is_causal=np.True_)
        assert (actual == wanted).all()


def test_numbers_of_heads_are_exact_unless_traced():
    """This holds even if JAX has no float64."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(x.shape).astype(np.float32) for x in ARRAYS]
    scale = random.standard_normal(4)
    with jax.enable_x64(False):
        for given in (scale, scale.tolist(), tuple(scale)):
            actual = attend(*arrays, scale=given, softcap=[np.inf, 2.0, 0.5, 1e30])
            wanted = regard.scaled_dot_product_attention(
                *arrays, scale=scale, softcap=[np.inf, 2.0, 0.5, 1e30]
            )
            assert (np.asarray(actual) == wanted).all()
        narrow = scale.astype(np.float32)
        actual = jax.jit(lambda scale: attend(*arrays, scale=scale))(narrow)
        wanted = regard.scaled_dot_product_attention(*arrays, scale=narrow)
        assert (np.asarray(actual) == wanted).all()


def test_other_byte_orders_are_read():
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(x.shape).astype(np.float32) for x in ARRAYS]
    lengths = np.array([5, 2])
    wanted = attend(*arrays, key_lengths=lengths)
    swapped = [x.astype(x.dtype.newbyteorder("S")) for x in (*arrays, lengths)]
    assert (attend(*swapped[:3], key_lengths=swapped[3]) == wanted).all()


def test_a_donated_array_is_not_overwritten_while_it_is_read():
    query = np.random.default_rng(0).standard_normal((2, 4, 300, 64)).astype(np.float32)
    program = jax.jit(lambda x: attend(x, x, x), donate_argnums=0)
    wanted = regard.scaled_dot_product_attention(query, query, query)
    assert (np.asarray(program(jnp.array(query))) == wanted).all()
