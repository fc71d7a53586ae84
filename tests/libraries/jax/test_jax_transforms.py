"""JAX's transformations of the call: vmap, scan, checkpoints and traced options have the bits of
NumPy calls; nothing is copied."""

import numpy as np
import pytest

import regard
from cases import Case, build
from problem import drawn
from reference import assert_same_bits
from sparse_cases import NAMES as MASK_NAMES
from sparse_cases import dense, sparse_masks

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard.jax  # noqa: E402

ROLES = ("query", "key", "value")
PROBLEM = build(
    Case(
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
    ),
    np.dtype(np.float64),
    0.0,
)
# All arrays of a call by name; with these names, `attend` calls a function with them.
GIVEN = dict(zip(ROLES, PROBLEM.arrays, strict=True)) | {
    "bool_mask": np.random.default_rng(3).random((2, 1, 9, 21)) < 0.8,
    "float_mask": PROBLEM.options["mask"],
    **{name: x for name, x in PROBLEM.options.items() if isinstance(x, np.ndarray)},
    "dropout_seed": np.uint32(77),
}
del GIVEN["mask"]
INPUTS = (*ROLES, "float_mask", "alibi_slopes", "distance_bias", "sinks")


def attend(given, function):
    given = dict(given)
    arrays = [given.pop(name) for name in ROLES]
    mask = given.pop("bool_mask"), given.pop("float_mask")
    if function is regard.scaled_dot_product_attention:
        given["dropout_seed"] = int(given["dropout_seed"])
    options = {"dropout_p": 0.3, "is_causal": True, "return_lse": True}
    return function(*arrays, mask, **given, **options)


def results(given):
    """Return the gradients of a loss, output and lse."""

    def loss(inputs):
        output, lse = attend(given | inputs, regard.jax.scaled_dot_product_attention)
        finite = jnp.where(jnp.isfinite(lse), lse, 0)
        return (output**2).sum() + jnp.sin(finite).sum(), (output, lse)

    return jax.grad(loss, has_aux=True)({name: given[name] for name in INPUTS if name in given})


def numpy_results(given):
    """Return the same by NumPy calls."""
    output, lse = attend(given, regard.scaled_dot_product_attention)
    names = [name for name in INPUTS if name in given]
    options = {name: x for name, x in given.items() if name not in (*ROLES, "float_mask")}
    mask = options.pop("bool_mask"), given["float_mask"]
    options["dropout_seed"] = int(options["dropout_seed"])
    gradients = regard.scaled_dot_product_attention_backward(
        *(2 * output, *(given[role] for role in ROLES), output, lse, mask),
        **options,
        dropout_p=0.3,
        is_causal=True,
        grad_lse=np.asarray(jnp.where(jnp.isfinite(lse), jnp.cos(lse), 0)),
        with_respect_to=[name.removeprefix("float_") for name in names],
    )
    return {n: getattr(gradients, n.removeprefix("float_")) for n in names}, (output, lse)


def several(name, array):
    """Return three different copies of an array; integers stay in range."""
    if name == "dropout_seed":
        return np.arange(5, 8, dtype=np.uint32)
    if array.dtype == bool:
        return np.stack([np.roll(array, i, -1) for i in range(3)])
    if array.dtype.kind == "i":
        return np.stack([np.maximum(array - i, 0) for i in range(3)])
    return np.stack([array + 0.25 * i for i in range(3)])


NAMES = tuple(GIVEN)
MAPPED = [(True, (name,)) for name in NAMES]
MAPPED += [(False, ("query",)), (False, ("key", "value")), (True, NAMES), (False, NAMES)]


@pytest.mark.parametrize(("with_sinks", "mapped"), MAPPED)
def test_vmap_over_an_argument_is_a_call_for_each(with_sinks, mapped):
    """With sinks, the calls run one after another; without sinks, they run together. Inputs that
    are not mapped still have a gradient for each mapped call."""
    given = {name: x for name, x in GIVEN.items() if with_sinks or name != "sinks"}
    given |= {name: several(name, given[name]) for name in mapped if name in given}
    axes = {name: 0 if name in mapped else None for name in given}
    actual = jax.jit(jax.vmap(results, (axes,)))(given)
    each = [
        numpy_results({n: x[i] if axes[n] == 0 else x for n, x in given.items()}) for i in range(3)
    ]
    wanted = jax.tree.map(lambda *parts: np.stack(parts), *each)
    jax.tree.map(lambda one, other: assert_same_bits(np.asarray(one), other), actual, wanted)


def test_gradients_of_vmap_are_sums():
    """Inputs that are not mapped have the sum of the gradients of all mapped calls."""

    def total(key, query):
        given = GIVEN | {"query": query, "key": key}
        return (attend(given, regard.jax.scaled_dot_product_attention)[0] ** 2).sum()

    key, queries = GIVEN["key"], several("query", GIVEN["query"])
    actual = jax.jit(jax.grad(lambda key: jax.vmap(total, (None, 0))(key, queries).sum()))(key)
    parts = [np.asarray(jax.jit(jax.grad(total))(key, query)) for query in queries]
    bound = 3 * np.finfo(np.float64).eps * sum(map(np.abs, parts))
    assert (np.abs(actual - sum(parts)) <= bound).all()


def test_vmap_over_other_axes_twice_and_over_nothing():
    query, key, value = PROBLEM.arrays
    queries = np.stack([query, query + 1, query - 1], axis=-2)
    keys = np.stack([key, 2 * key], axis=1)

    def call(query, key):
        return regard.jax.scaled_dot_product_attention(query, key, value)

    twice = jax.jit(jax.vmap(jax.vmap(call, (None, 1)), (-2, None), out_axes=1))
    actual = np.asarray(twice(queries, keys))
    assert actual.shape == (2, 3, 2, 4, 9, 6)
    for i, j in np.ndindex(3, 2):
        wanted = regard.scaled_dot_product_attention(queries[..., i, :], keys[:, j], value)
        assert_same_bits(actual[j, i], wanted)
    nothing = jax.vmap(lambda query: call(query, key))(jnp.zeros((0, 2, 4, 9, 8)))
    assert nothing.shape == (0, 2, 4, 9, 6)


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


MASKS = sparse_masks(2, 4, 21, 60)
ARRAYS = [drawn((2, heads, n, 8), np.float32, n) for heads, n in ((4, 21), (2, 60), (2, 60))]


@pytest.mark.parametrize("name", MASK_NAMES)
def test_sparse_masks_under_vmap_and_without_64_bits(name):
    """Numbers of keys and spans are still passed in full. Masks have fewer axes than the batch."""
    several = [np.stack([x, x + 1, -x]) for x in ARRAYS]

    def loss(mask):
        def total(*arrays):
            return (regard.jax.scaled_dot_product_attention(*arrays, mask) ** 2).sum()

        return jax.jit(jax.vmap(jax.value_and_grad(total, (0, 1, 2))))(*several)

    wanted = loss(dense(MASKS[name], 60))
    jax.tree.map(lambda one, other: assert_same_bits(*map(np.asarray, (one, other))),
                 loss(MASKS[name]), wanted)  # fmt: skip
    deep = regard.scaled_dot_product_attention(*several, MASKS[name])
    assert_same_bits(
        np.asarray(regard.jax.scaled_dot_product_attention(*several, MASKS[name])), deep
    )
    with jax.enable_x64(False):
        call = jax.jit(lambda *x: regard.jax.scaled_dot_product_attention(*x, MASKS[name]))
        assert_same_bits(np.asarray(call(*several)), deep)


@pytest.mark.parametrize("name", ["ranges", "blocks of all heads"])
def test_second_derivatives_with_sparse_masks(name):
    def penalty(mask):
        def total(*arrays):
            return (regard.jax.scaled_dot_product_attention(*arrays, mask) ** 2).sum()

        return jax.grad(lambda *arrays: (jax.grad(total)(*arrays) ** 2).sum())(*ARRAYS)

    wanted = penalty(dense(MASKS[name], 60))
    assert_same_bits(np.asarray(penalty(MASKS[name])), np.asarray(wanted))
