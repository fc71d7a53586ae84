"""Test invalid arguments of the call on JAX arrays, which are refused during tracing if they can be
known then."""

import numpy as np
import pytest

from messages import says

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard  # noqa: E402
import regard.jax  # noqa: E402

attend = regard.jax.scaled_dot_product_attention
QUERY, KEY = np.zeros((2, 4, 3, 8), np.float32), np.zeros((2, 2, 5, 8), np.float32)
ARRAYS = QUERY, KEY, KEY

WRONG = {
    "a list": ((QUERY.tolist(), KEY, KEY), {}, TypeError, ("query", "list", "jax.numpy.asarray")),
    "None": ((QUERY, None, KEY), {}, TypeError, ("key", "NoneType")),
    "integers": ((QUERY, KEY, KEY.astype(int)), {}, TypeError, ("value", "int64")),
    "complex": ((QUERY.astype(complex), KEY, KEY), {}, TypeError, ("query", "complex128")),
    "objects": ((QUERY.astype(object), KEY, KEY), {}, TypeError, ("query", "object")),
    "masked": ((np.ma.masked_array(QUERY), KEY, KEY), {}, TypeError, ("query", "masked")),
    "heads": ((QUERY[:, :3], KEY, KEY), {}, ValueError, ("heads", "3", "2")),
    "head_dim": ((QUERY[..., :7], KEY, KEY), {}, ValueError, ("head_dim", "7 and 8")),
    "batch": ((QUERY, KEY[[0, 0, 0]], KEY), {}, ValueError, ("query", "broadcast")),
    "axes": ((QUERY[0, 0, 0], KEY, KEY), {}, ValueError, ("query", "(8,)")),
    "swapped": (
        (np.zeros((1, 7, 4, 8), np.float32), *2 * [np.zeros((1, 9, 2, 8), np.float32)]),
        {},
        ValueError,
        ("query.swapaxes",),
    ),
    "mask's shape": (ARRAYS, {"mask": np.zeros((4, 5), bool)}, ValueError, ("mask", "(4, 5)")),
    "mask's type": (ARRAYS, {"mask": np.zeros((3, 5), int)}, TypeError, ("mask.astype", "int64")),
    "pair": (ARRAYS, {"mask": (QUERY, QUERY)}, TypeError, ("pair", "float32, float32")),
    "window": (ARRAYS, {"window": (-1, 0)}, ValueError, ("window", "-1")),
    "softcap": (ARRAYS, {"softcap": 0.0}, ValueError, ("softcap",)),
    "scale": (ARRAYS, {"scale": float("nan")}, ValueError, ("scale", "nan")),
    "softcaps": (ARRAYS, {"softcap": [1.0, 0.0, 1.0, 1.0]}, ValueError, ("softcap", "inf")),
    "scales": (ARRAYS, {"scale": jnp.ones(3)}, ValueError, ("scale", "(4,)", "(3,)")),
    "true scales": (ARRAYS, {"scale": np.ones(4, bool)}, TypeError, ("scale", "bool")),
    "distances": (
        ARRAYS,
        {"distance_bias": np.zeros((3, 5))},
        ValueError,
        ("distance_bias", "(3, 5)"),
    ),
    "columns": (ARRAYS, {"distance_bias": np.zeros(4)}, ValueError, ("distance_bias", "odd")),
    "function": (ARRAYS, {"score_function": None}, TypeError, ("score_function", "alive")),
    "sparse mask": (
        ARRAYS,
        {"mask": regard.masks.Ranges([0, 0], 5)},
        ValueError,
        ("sparse mask", "(2, 4, 3, 5)", "(2, 5)"),
    ),
    "sparse keys": (
        ARRAYS,
        {"mask": regard.masks.Ranges(0, 6)},
        ValueError,
        ("sparse mask", "fewer keys", "(1, 6)"),
    ),
    "sparse pair": (
        ARRAYS,
        {"mask": (regard.masks.Ranges(0, 5), regard.masks.Ranges(0, 5))},
        TypeError,
        ("mask", "pair", "bool, bool"),
    ),
    "dropout": (ARRAYS, {"dropout_p": 0.5}, TypeError, ("dropout_p", "dropout_seed")),
    "seed": (
        ARRAYS,
        {"dropout_p": 0.5, "dropout_seed": 0.5},
        TypeError,
        ("dropout_seed", "float64"),
    ),
    "seeds": (
        ARRAYS,
        {"dropout_p": 0.5, "dropout_seed": np.arange(2)},
        TypeError,
        ("dropout_seed", "(2,)"),
    ),
    "negative seed": (
        ARRAYS,
        {"dropout_p": 0.5, "dropout_seed": -1},
        ValueError,
        ("dropout_seed", "got -1"),
    ),
    "lengths": (ARRAYS, {"key_lengths": [3, 6]}, ValueError, ("key_lengths", "5", "6")),
    "length": (ARRAYS, {"key_lengths": -1}, ValueError, ("key_lengths", "-1")),
    "lengths' shape": (ARRAYS, {"key_lengths": [3, 3, 3]}, ValueError, ("key_lengths", "(3,)")),
    "lengths' type": (ARRAYS, {"key_lengths": [3.0, 3.0]}, TypeError, ("key_lengths", "float64")),
    "offset": (ARRAYS, {"query_offset": "start"}, ValueError, ("query_offset", "start")),
    "true offset": (ARRAYS, {"query_offset": True}, TypeError, ("query_offset", "bool")),
    "slopes": (ARRAYS, {"alibi_slopes": [1.0, 2.0]}, ValueError, ("alibi_slopes", "(2,)")),
    "sinks": (ARRAYS, {"sinks": np.zeros((2, 4))}, ValueError, ("sinks", "(2, 4)")),
    "nan sinks": (ARRAYS, {"sinks": [np.nan] * 4}, ValueError, ("sinks", "nan")),
    "lse": (ARRAYS, {"return_lse": 1}, TypeError, ("return_lse",)),
    "weights": (ARRAYS, {"return_weights": True}, TypeError, ("return_weights",)),
    "out": (ARRAYS, {"out": QUERY}, TypeError, ("out",)),
    "attn_mask": (ARRAYS, {"attn_mask": None}, TypeError, ("attn_mask", "mask")),
    "precision": (ARRAYS, {"precision": "int4"}, ValueError, ("precision", "int4")),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("is_traced", [False, True])
def test_bad_input_is_refused(case, is_traced):
    arrays, options, kind, words = WRONG[case]
    if not is_traced:
        with pytest.raises(kind, match=says(*words)):
            attend(*arrays, **options)
        return

    @jax.jit
    def traced(scalar):
        return scalar * attend(*arrays, **options)

    with pytest.raises(kind, match=says(*words)):
        traced(1.0)


def test_shapes_of_traced_arrays_are_checked_when_they_are_traced():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (QUERY, KEY, KEY[..., :4, :])]
    with pytest.raises(ValueError, match=says("key and value", "5 and 4")):
        jax.eval_shape(attend, *shapes)
    lengths = jax.ShapeDtypeStruct((3,), np.int32)
    with pytest.raises(ValueError, match=says("key_lengths", "(3,)")):
        jax.eval_shape(lambda n: attend(*ARRAYS, key_lengths=n), lengths)


@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p", "window"])
def test_what_a_program_is_compiled_for_cannot_be_traced(name):
    @jax.jit
    def traced(value):
        return attend(*ARRAYS, **{name: (value, 0) if name == "window" else value})

    with pytest.raises(TypeError, match=says(name, "traced")):
        traced(0.5)


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


def test_traced_numbers_are_checked_when_they_are_known():
    program = jax.jit(lambda lengths: attend(*ARRAYS, key_lengths=lengths))
    assert program(jnp.array([5, 0])).shape == (2, 4, 3, 8)
    with pytest.raises(ValueError, match=says("key_lengths", "6")):
        program(jnp.array([5, 6])).block_until_ready()
    assert program(jnp.array([1, 2])).shape == (2, 4, 3, 8)


def test_a_jax_key_is_not_a_seed():
    with pytest.raises(TypeError, match=says("dropout_seed", "jax.random.bits")):
        attend(*ARRAYS, dropout_p=0.5, dropout_seed=jax.random.key(0))


def test_64_bits_that_jax_would_cut_are_refused():
    with jax.enable_x64(False):
        assert attend(QUERY.astype(np.float64), KEY, KEY).dtype == np.float32
        with pytest.raises(ValueError, match=says("query_offset", "32 bits")):
            attend(*ARRAYS, query_offset=np.array([2**40, 0]))
        far = attend(*ARRAYS, query_offset=2**40, is_causal=True)
        assert (far == attend(*ARRAYS)).all()


def test_arrays_on_other_devices_are_refused():
    class Elsewhere:
        platform = "gpu"

    class OnGpu:
        def devices(self):
            return {Elsewhere()}

    from regard.jax import _inputs

    with pytest.raises(TypeError, match=says("mask", "gpu", "jax.device_put")):
        _inputs.check_devices("mask", OnGpu())


def test_the_package_is_imported_only_by_who_asks(output_of):
    script = """
    import sys
    import regard
    assert not {"jax", "torch", "dask"} & set(sys.modules)
    sys.modules["jax"] = None
    try:
        import regard.jax
    except ImportError as error:
        print(error)
    """
    assert (
        output_of(script)
        == 'regard.jax needs the jax package: in a clone of regard, pip install ".[jax]"'
    )
