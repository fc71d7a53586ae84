"""Wrong calls of regard.jax, which are refused during tracing if they can be known then."""

import numpy as np
import pytest

from messages import check, each

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard  # noqa: E402
import regard.jax  # noqa: E402

QUERY, KEY = np.zeros((2, 4, 3, 8), np.float32), np.zeros((2, 2, 5, 8), np.float32)
ARRAYS = {"query": QUERY, "key": KEY, "value": KEY}
DROPS = {"dropout_p": 0.5}


def attend(changes):
    return regard.jax.scaled_dot_product_attention(**ARRAYS | changes)


WRONG = [
    ({"query": QUERY.tolist()}, TypeError, "query must be ... pass jax.numpy.asarray"),
    ({"value": KEY.astype(int)}, TypeError, "value must be an array of ... got int32"),
    ({"query": np.ma.masked_array(QUERY)}, TypeError, "query must ... pass .filled(...)"),
    ({"mask": regard.masks.Ranges(0, 6)}, ValueError, "mask must broadcast to ... got a sparse"),
    ({"window": (-1, 0)}, ValueError, "window must have sides of None ... got -1 on"),
    (DROPS | {"dropout_seed": 0.5}, TypeError, "dropout_seed must be an integer ... got an array"),
    (DROPS | {"dropout_seed": -1}, ValueError, "dropout_seed must be from 0 to 2**64 - 1, got -1"),
    (DROPS | {"dropout_seed": jax.random.key(0)}, TypeError, "dropout_seed must be an ... got an"),
    ({"key_lengths": [3, 6]}, ValueError, "key_lengths must be from 0 to 5, got 6"),
    ({"return_lse": 1}, TypeError, "return_lse must be True or False, got int"),
]


@pytest.mark.parametrize("is_traced", [False, True])
@each(WRONG)
def test_calls(wrong, error, parts, is_traced):
    if is_traced:
        check(lambda: jax.jit(lambda x: x * attend(wrong))(1.0), error, parts)
    else:
        check(lambda: attend(wrong), error, parts)


def test_shapes_of_traced_arrays_are_checked_when_they_are_traced():
    shapes = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in ARRAYS.items()}
    shapes["value"] = jax.ShapeDtypeStruct((2, 2, 4, 8), np.float32)
    check(lambda: jax.eval_shape(attend, shapes), ValueError, "key and value ... 5 and 4")
    lengths = {"key_lengths": jax.ShapeDtypeStruct((3,), np.int32)}
    check(lambda: jax.eval_shape(attend, lengths), ValueError, "key_lengths ... (3,)")


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p", "window"])
def test_what_a_program_is_compiled_for_cannot_be_traced(name):
    traced = jax.jit(lambda x: attend({name: (x, 0) if name == "window" else x}))
    check(lambda: traced(0.5), TypeError, f"{name} ... traced")


def test_traced_numbers_are_checked_when_they_are_known():
    program = jax.jit(lambda lengths: attend({"key_lengths": lengths}))
    assert program(jnp.array([5, 0])).shape == (2, 4, 3, 8)
    with pytest.raises(ValueError, match=r"key_lengths .*\b6\b"):
        program(jnp.array([5, 6])).block_until_ready()
    assert program(jnp.array([1, 2])).shape == (2, 4, 3, 8)


def test_64_bits_that_jax_would_cut_are_refused():
    far = np.array([2**40, 0])
    with jax.enable_x64(False):
        check(lambda: attend({"query_offset": far}), ValueError, "query_offset ... 32 bits")
        assert (attend({"query_offset": 2**40, "is_causal": True}) == attend({})).all()


def test_arrays_on_other_devices():
    class Elsewhere:
        platform = "gpu"

    class OnGpu:
        def devices(self):
            return {Elsewhere()}

    from regard.jax import _inputs

    parts = "mask ... gpu ... jax.device_put"
    check(lambda: _inputs.check_devices("mask", OnGpu()), TypeError, parts)


DERIVATIVES = {
    "int8": (jax.grad, "precision must be None"),
    "int8 forward": (lambda f: lambda x: jax.jvp(f, (x,), (x,)), "precision must be None"),
    "bfloat16": (lambda f: lambda x: jax.jvp(f, (x,), (x,)), "in forward mode"),
    "bfloat16 twice": (
        lambda f: jax.grad(lambda x: jax.grad(f)(x).sum()),
        "precision must be None in gradients of gradients",
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_rounded_calls(name):
    derive, part = DERIVATIVES[name]
    call = derive(lambda x: (attend({"query": x, "precision": name.split()[0]}) ** 2).sum())
    with pytest.raises(NotImplementedError, match=part):
        call(QUERY)


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_numbers_that_have_no_gradient(name):
    call = jax.grad(lambda x: attend({name: x}).sum())
    with pytest.raises(NotImplementedError, match=f"{name} has no gradient: pass jax.lax.stop_gr"):
        call(jnp.ones(4))
