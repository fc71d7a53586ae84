"""Test the compiled call on JAX arrays: it has the numbers of the NumPy call, for every option and
type, and under transformations."""

import dataclasses

import numpy as np
import pytest

import regard
from cases import Case
from reference import assert_same_bits

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard.jax  # noqa: E402


def divided(options):
    """Return the options that are traced, and those that are part of the program."""
    arrays = {k: v for k, v in options.items() if isinstance(v, np.ndarray)}
    if isinstance(options.get("mask"), tuple):
        arrays["mask"] = options["mask"]
    return arrays, {k: v for k, v in options.items() if k not in arrays}


def compiled(options):
    """Return the compiled call, which traces its arrays, including masks and slopes, and returns
    both results."""
    _, known = divided(options)

    @jax.jit
    def attend(query, key, value, arrays):
        return regard.jax.scaled_dot_product_attention(
            query, key, value, **arrays, **known, return_lse=True
        )

    return attend


PROBLEM = Case(
    "jax",
    *((2, 4, 9, 8), (2, 2, 21, 8), (2, 2, 21, 6)),
    float_mask=(4, 9, 21),
    alibi_slopes=0.2,
    distance_bias=9,
    scale=(0.1, 0.2, -0.3, 0.4),
    softcap=(0.5, 2.0, float("inf"), 1e30),
    sinks=0.5,
    key_lengths=(21, 15),
    left_padding=(2, 0),
    query_offset=(12, 9),
    is_causal=True,
).build(np.dtype(np.float32))
SHOWN = np.random.default_rng(3).random((2, 1, 9, 21)) < 0.8
PAIR = dataclasses.replace(
    PROBLEM, options=PROBLEM.options | {"mask": (SHOWN, PROBLEM.options["mask"])}
)
DROPPED = dataclasses.replace(PAIR, options=PAIR.options | {"dropout_p": 0.3, "dropout_seed": 77})
INTEGERS = ("query_offset", "key_lengths", "left_padding")


def named(problem):
    """Return all arrays of a problem by name, as a call accepts them."""
    given = dict(zip(("query", "key", "value"), problem.arrays, strict=True))
    arrays, _ = divided(problem.options)
    masks = arrays.pop("mask", None)
    if isinstance(masks, tuple):
        given |= {"bool_mask": masks[0], "float_mask": masks[1]}
    elif masks is not None:
        given["bool_mask" if masks.dtype == bool else "float_mask"] = masks
    if "dropout_seed" in problem.options:
        arrays["dropout_seed"] = np.uint32(problem.options["dropout_seed"])
    return given | arrays


def attend(given, function, **options):
    given = dict(given)
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    masks = [given.pop(name) for name in ("bool_mask", "float_mask") if name in given]
    mask = tuple(masks) if len(masks) == 2 else masks[0] if masks else None
    if "dropout_seed" in given:
        options["dropout_p"] = 0.3
        if function is regard.scaled_dot_product_attention:
            given["dropout_seed"] = int(given["dropout_seed"])
    return function(query, key, value, mask, **given, **options, is_causal=True, return_lse=True)


def several(name, array, count=3):
    """Return different copies of an array; integers stay in range."""
    if array.dtype == bool:
        return np.stack([np.roll(array, i, -1) for i in range(count)])
    if name == "dropout_seed":
        return np.arange(5, 5 + count, dtype=np.uint32)
    if name in INTEGERS:
        return np.stack([np.maximum(array - i, 0) for i in range(count)])
    return np.stack([array + array.dtype.type(0.25 * i) for i in range(count)])


NAMES = tuple(named(DROPPED))


def each_alone(given, mapped, count=3):
    """Return the results of the NumPy call for each of the mapped arrays."""
    results = [
        attend(
            {name: x[i] if name in mapped else x for name, x in given.items()},
            regard.scaled_dot_product_attention,
        )
        for i in range(count)
    ]
    return tuple(map(np.stack, zip(*results, strict=True)))


@pytest.mark.parametrize("problem", [PROBLEM, PAIR, DROPPED], ids=["mask", "pair", "dropout"])
@pytest.mark.parametrize("mapped", [*((name,) for name in NAMES), NAMES, ("key", "value")])
@pytest.mark.parametrize("without_sinks", [True, False])
def test_vmap_over_an_argument_is_a_call_for_each(problem, mapped, without_sinks):
    """With sinks, the calls run one after another; without sinks, they run together, with the same
    bits."""
    given = named(problem)
    if without_sinks:
        given.pop("sinks")
    mapped = tuple(name for name in mapped if name in given)
    if not mapped:
        return
    given |= {name: several(name, given[name]) for name in mapped}
    axes = {name: 0 if name in mapped else None for name in given}
    call = jax.vmap(lambda given: attend(given, regard.jax.scaled_dot_product_attention), (axes,))
    actual = tuple(map(np.asarray, jax.jit(call)(given)))
    assert_same_bits(actual, each_alone(given, mapped))


def test_vmap_over_other_axes_and_twice():
    query, key, value = PROBLEM.arrays
    queries = np.stack([query, query + 1, query - 1], axis=-2)
    keys = np.stack([key, 2 * key], axis=1)

    def call(query, key):
        return regard.jax.scaled_dot_product_attention(query, key, value)

    twice = jax.jit(jax.vmap(jax.vmap(call, (None, 1)), (-2, None), out_axes=1))
    actual = np.asarray(twice(queries, keys))
    assert actual.shape == (2, 3, 2, 4, 9, 6)
    for i in range(3):
        for j in range(2):
            wanted = regard.scaled_dot_product_attention(queries[..., i, :], keys[:, j], value)
            assert_same_bits(actual[j, i], wanted)


def test_vmap_over_nothing_is_empty():
    call = jax.vmap(lambda q: regard.jax.scaled_dot_product_attention(q, *PROBLEM.arrays[1:]))
    assert call(jnp.zeros((0, 2, 4, 9, 8), jnp.float32)).shape == (0, 2, 4, 9, 6)


def test_a_traced_seed_drops_other_weights_in_one_program():
    traces = []

    @jax.jit
    def attend(query, key, value, seed):
        traces.append(seed)
        return regard.jax.scaled_dot_product_attention(
            query, key, value, dropout_p=0.5, dropout_seed=seed
        )

    for seed in (1, 2, 2**32 - 1):
        wanted = regard.scaled_dot_product_attention(
            *PROBLEM.arrays, dropout_p=0.5, dropout_seed=seed
        )
        assert_same_bits(attend(*PROBLEM.arrays, np.uint32(seed)), wanted)
    assert len(traces) == 1
    large = {"dropout_p": 0.5, "dropout_seed": 2**64 - 1, "dropout_origin": (3, 2, 5)}
    actual = regard.jax.scaled_dot_product_attention(*PROBLEM.arrays, **large)
    assert_same_bits(actual, regard.scaled_dot_product_attention(*PROBLEM.arrays, **large))


def test_scan_and_remat_and_shapes():
    query, key, value = PROBLEM.arrays

    @jax.jit
    def steps(query):
        def step(state, offset):
            state = jax.checkpoint(
                lambda q: regard.jax.scaled_dot_product_attention(
                    q, key, key, is_causal=True, query_offset=offset
                )
            )(state)
            return state, state.sum()

        return jax.lax.scan(step, query, jnp.arange(3))[0]

    wanted = query
    for offset in range(3):
        wanted = regard.scaled_dot_product_attention(
            wanted, key, key, is_causal=True, query_offset=offset
        )
    assert_same_bits(np.asarray(steps(query)), wanted)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)]
    shape = jax.eval_shape(regard.jax.scaled_dot_product_attention, *shapes)
    assert (shape.shape, shape.dtype) == ((2, 4, 9, 6), np.float32)


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_precision(precision):
    options = {"precision": precision, "return_lse": True}
    actual = regard.jax.scaled_dot_product_attention(*PROBLEM.arrays, **options)
    wanted = regard.scaled_dot_product_attention(*PROBLEM.arrays, **options)
    assert_same_bits(tuple(map(np.asarray, actual)), wanted)


def test_subnormal_numbers_are_not_zeros():
    """XLA's threads flush subnormals. regard would also flush them there, and results would depend
    on threads."""
    tiny = np.full((1, 3, 4), 2e-40, np.float32)
    value = np.full((1, 3, 4), 6e-42, np.float32)

    @jax.jit
    def attend(query, key, value):
        return regard.jax.scaled_dot_product_attention(query, key, value, scale=1e38)

    wanted = regard.scaled_dot_product_attention(tiny, tiny, value, scale=1e38)
    assert (wanted > 0).all()
    assert_same_bits(np.asarray(attend(tiny, tiny, value)), wanted)


def test_nothing_is_copied(monkeypatch):
    """The NumPy call reads and writes XLA's own memory."""
    from regard.jax import _computation

    seen = []

    def spy(**given):
        addresses = [given[name].ctypes.data for name in ("query", "key", "value", "out")]
        seen.append((*addresses, given["query"].flags.writeable))
        return regard.scaled_dot_product_attention(**given)

    monkeypatch.setattr(_computation, "scaled_dot_product_attention", spy)
    arrays = [jax.random.normal(jax.random.key(i), (2, 300, 64)) for i in range(3)]
    for function in (
        regard.jax.scaled_dot_product_attention,
        jax.jit(regard.jax.scaled_dot_product_attention),
    ):
        output = function(*arrays)
        output.block_until_ready()
        wanted = [array.unsafe_buffer_pointer() for array in (*arrays, output)]
        assert seen.pop() == (*wanted, False)
