"""Test gradients of the call on JAX arrays, and gradients of these gradients, against the
oracle."""

import functools

import numpy as np
import pytest
from test_jax_attention import attend, divided, named, several

import gradient_reference
import regard
from cases import Case
from element_types import each_in_one_type
from gradient_cases import ALL, assert_within, build, drawn, judge
from option_cases import MIXES
from reference import assert_same_bits

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402

import regard.jax  # noqa: E402

ROLES = ("query", "key", "value")


def function_of(problem, *, return_lse=True):
    """Return the call as a function of the inputs with gradients, by name; all its other arrays are
    constants."""
    constants, known = divided(problem.options)

    def function(inputs):
        given = dict(inputs)
        arrays = [given.pop(role) for role in ROLES]
        options = constants | known
        if "mask" in given:
            mask = given.pop("mask")
            is_pair = isinstance(options["mask"], tuple)
            options["mask"] = (options["mask"][0], mask) if is_pair else mask
        options |= given
        return regard.jax.scaled_dot_product_attention(*arrays, **options, return_lse=return_lse)

    return function


SECOND = [*MIXES[1::24], *ALL[11::150]]


def check_second(problem):
    """Check the gradients of <a, dQ> + <b, dK> + <w, dV>, including the gradient for the gradient
    of lse."""
    function = function_of(problem)
    inputs = {role: getattr(problem, role) for role in ROLES}
    constants = {name: x for name, x in problem.inputs.items() if name not in ROLES}
    directions = {
        role: drawn(x.shape, x.dtype, 7 + i) for i, (role, x) in enumerate(inputs.items())
    }

    def gradients(inputs, grads):
        _, pull = jax.vjp(lambda inputs: function(inputs | constants), inputs)
        return pull(grads)[0]

    @jax.jit
    def double(inputs, grads, directions):
        _, pull = jax.vjp(gradients, inputs, grads)
        return pull(directions)

    of_inputs, (of_output, of_lse) = double(
        inputs, (problem.grad_output, problem.grad_lse), directions
    )
    given = *directions.values(), problem.grad_output, *problem.arrays
    grads = {"grad_lse": problem.grad_lse}
    exact = judge(gradient_reference.double_backward, problem, *given, **grads)
    for name, actual in {"grad_output": of_output, **of_inputs}.items():
        actual, judged = np.asarray(actual), getattr(exact, name)
        with np.errstate(over="ignore"):
            least = (np.abs(judged.exact) - judged.limit).astype(actual.dtype)
        is_large = np.isposinf(least)  # float16 cannot store it
        assert np.array_equal(actual[is_large], np.copysign(np.inf, judged.exact[is_large]))
        judged = judged._replace(exact=np.where(is_large, 0, judged.exact))
        assert_within(judged, np.where(is_large, 0, actual), actual.dtype, name)
    along = *problem.arrays, *directions.values()
    judged = judge(gradient_reference.jvp, problem, *along).tangent_lse
    assert_within(judged, np.asarray(of_lse), problem.grad_lse.dtype, "grad_lse")


@each_in_one_type(SECOND, "storage")
def test_gradients_of_gradients(case, storage):
    check_second(build(case, storage))


PROBLEM = build(
    Case(
        "jax gradients",
        *((2, 4, 9, 8), (2, 2, 21, 8), (2, 2, 21, 6)),
        float_mask=(4, 9, 21),
        alibi_slopes=0.2,
        distance_bias=9,
        sinks=0.5,
        query_offset=(12, 9),
        is_causal=True,
    ),
    np.dtype(np.float64),
    0.0,
)


def loss(given):
    output, lse = attend(given, regard.jax.scaled_dot_product_attention)
    return (output**2).sum() + jnp.sin(lse).sum()


INPUTS = ("query", "key", "value", "float_mask", "alibi_slopes", "distance_bias", "sinks")


def numpy_gradients(given, names=INPUTS):
    """Return the gradients of the loss from the NumPy calls."""
    output, lse = attend(given, regard.scaled_dot_product_attention)
    more = {name: x for name, x in given.items() if name not in (*ROLES, "float_mask")}
    gradients = regard.scaled_dot_product_attention_backward(
        2 * output,
        *(given[role] for role in ROLES),
        output,
        lse,
        given["float_mask"],
        **more,
        is_causal=True,
        grad_lse=np.asarray(jnp.cos(lse)),
        with_respect_to=[name.removeprefix("float_") for name in names],
    )
    return {name: getattr(gradients, name.removeprefix("float_")) for name in names}


@pytest.mark.parametrize("mapped", [*((name,) for name in INPUTS), INPUTS, ("key", "value")])
@pytest.mark.parametrize("without_sinks", [False, True])
def test_jit_of_vmap_of_grad(mapped, without_sinks):
    """Inputs that are not mapped still have a gradient for each mapped call."""
    given = named(PROBLEM)
    if without_sinks:
        given.pop("sinks")
    names = tuple(name for name in INPUTS if name in given)
    mapped = tuple(name for name in mapped if name in given)
    if not mapped:
        return
    given |= {name: several(name, given[name]) for name in mapped}
    constants = {name: x for name, x in given.items() if name not in names}
    inputs = {name: given[name] for name in names}
    axes = {name: 0 if name in mapped else None for name in names}
    gradient = jax.grad(lambda inputs: loss(inputs | constants))
    actual = jax.jit(jax.vmap(gradient, (axes,)))(inputs)
    each = [
        numpy_gradients({k: x[i] if k in mapped else x for k, x in given.items()}, names)
        for i in range(3)
    ]
    for name in names:
        assert_same_bits(np.asarray(actual[name]), np.stack([one[name] for one in each]))


def test_jit_of_grad_of_vmap():
    """Inputs that are not mapped have the sum of the gradients of all mapped calls."""
    given = named(PROBLEM)
    queries = several("query", given["query"])
    constants = {name: x for name, x in given.items() if name not in ("query", "key")}

    @jax.jit
    @jax.grad
    def gradient(inputs):
        each = jax.vmap(lambda query: loss(constants | inputs | {"query": query}))
        return each(inputs["query"]).sum()

    actual = gradient({"query": queries, "key": given["key"]})
    each = [numpy_gradients(given | {"query": query}, ("query", "key")) for query in queries]
    assert_same_bits(np.asarray(actual["query"]), np.stack([one["query"] for one in each]))
    total = sum(one["key"] for one in each)
    bound = 3 * np.finfo(np.float64).eps * sum(np.abs(one["key"]) for one in each)
    assert (np.abs(actual["key"] - total) <= bound).all()


def test_only_what_is_asked_for_is_computed(monkeypatch):
    from regard.jax import _computation

    asked = []

    def spy(*arguments, with_respect_to, **options):
        asked.append(with_respect_to)
        return regard.scaled_dot_product_attention_backward(
            *arguments, with_respect_to=with_respect_to, **options
        )

    monkeypatch.setattr(_computation, "scaled_dot_product_attention_backward", spy)
    given = named(PROBLEM)
    for names in (("query",), ("float_mask",), ("value", "sinks")):
        constants = {name: x for name, x in given.items() if name not in names}
        inputs = {name: given[name] for name in names}
        gradient = jax.jit(jax.grad(lambda inputs, c=constants: loss(c | inputs)))
        jax.block_until_ready(gradient(inputs))
        assert set(asked.pop()) == {name.removeprefix("float_") for name in names}
        assert not asked


def calls_in(monkeypatch):
    """Return a list to which all further calls of the compiled module add their names."""
    from regard.jax import _computation

    calls = []

    def counted(name, function):
        def call(*arguments):
            calls.append(name)
            function(*arguments)

        return call

    for name, function in _computation._FUNCTIONS.items():
        monkeypatch.setitem(_computation._FUNCTIONS, name, counted(name, function))
    return calls


def test_no_derivative_is_computed_twice(monkeypatch):
    calls = calls_in(monkeypatch)
    query, key, value = PROBLEM.arrays

    def total(query):
        return (regard.jax.scaled_dot_product_attention(query, key, value) ** 2).sum()

    def penalty(query):
        return (jax.grad(total)(query) ** 2).sum()

    def along(query):
        return jax.jvp(total, (query,), (query,))

    for function, wanted in (
        (total, ["attend"]),
        (along, ["attend_with_residual", "jvp"]),
        (jax.grad(total), ["attend_with_residual", "backward"]),
        (penalty, ["attend_with_residual", "backward"]),
        # The gradient of the penalty with respect to the output goes through attention again.
        (jax.grad(penalty), ["attend_with_residual", "backward", "backward"]),
    ):
        jax.block_until_ready(jax.jit(function)(query))
        assert calls == wanted
        calls.clear()


@pytest.mark.parametrize("wrapped", [jax.checkpoint, jax.jit])
def test_gradients_through_loops_are_fused(monkeypatch, wrapped):
    """`scan` and `checkpoint` linearize their body, and transpose the result."""
    query, key, value, mask = drawn((4, 2, 5, 5), np.float64)
    numbers = np.arange(3.0)

    @wrapped
    def step(query, factor, mask):
        return query + regard.jax.scaled_dot_product_attention(query, key, value, factor * mask)

    def by_scan(mask):
        return (jax.lax.scan(lambda q, x: (step(q, x, mask), None), query, numbers)[0] ** 2).sum()

    def by_calls(mask):
        return (functools.reduce(lambda q, x: step(q, x, mask), numbers, query) ** 2).sum()

    calls = calls_in(monkeypatch)
    actual = np.asarray(jax.jit(jax.grad(by_scan))(mask))
    assert calls.count("backward") == len(numbers)
    assert "jvp" not in calls
    wanted = np.asarray(jax.grad(by_calls)(mask))
    assert np.abs(actual - wanted).max() <= 1e-14 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_a_hessian_is_symmetric(inner, outer):
    query, key, value = drawn((3, 2, 3, 2), np.float64)

    def loss(query):
        output, lse = regard.jax.scaled_dot_product_attention(
            query, key, value, softcap=2.0, return_lse=True
        )
        return (output**3).sum() + (lse**2).sum()

    hessian = np.asarray(jax.jit(outer(inner(loss)))(query)).reshape(query.size, -1)
    assert np.abs(hessian).max() > 0.1
    assert (
        np.abs(hessian - hessian.T).max() <= 64 * np.finfo(np.float64).eps * np.abs(hessian).max()
    )
    step = 1e-5 * drawn(query.shape, np.float64, 3)
    moved = jax.grad(loss)(query + step) - jax.grad(loss)(query - step)
    assert np.abs(hessian @ step.ravel() - np.ravel(moved) / 2).max() <= 1e-12


@pytest.mark.parametrize("wrt", [(1, 1), (0, 1), (1, 0)])
def test_second_derivatives_of_masks(wrt):
    """They are compared with differences of gradients."""
    query, key, value = drawn((3, 2, 4, 9, 8), np.float64)
    first, second = wrt

    def total(query, mask):
        return (regard.jax.scaled_dot_product_attention(query, key, value, mask) ** 2).sum()

    def penalty(*given):
        return (jax.grad(total, argnums=first)(*given) ** 2).sum()

    given = [query, drawn((9, 9), np.float64, 1)]
    step = 1e-5 * np.cos(given[second])
    actual = float((jax.grad(penalty, argnums=second)(*given) * step).sum())
    more, fewer = list(given), list(given)
    more[second], fewer[second] = given[second] + step, given[second] - step
    wanted = float(penalty(*more) - penalty(*fewer)) / 2
    assert abs(wanted) > 1e-6
    assert abs(actual - wanted) <= 1e-6 * abs(wanted)


def test_third_derivatives():
    query, key, value = drawn((3, 2, 3, 2), np.float64)

    def total(query):
        return (regard.jax.scaled_dot_product_attention(query, key, value) ** 3).sum()

    twice = jax.grad(lambda q: (jax.grad(total)(q) ** 2).sum())
    step = 1e-5 * np.cos(query)
    actual = jax.grad(lambda q: (twice(q) * step).sum())(query)
    wanted = (twice(query + step) - twice(query - step)) / 2
    assert np.abs(wanted).max() > 1e-7  # 0.01 of the step
    assert float(jnp.abs(actual - wanted).max()) <= 1e-6 * float(jnp.abs(wanted).max())


def test_a_constant_mask_allows_gradients_of_gradients():
    query, key, value = PROBLEM.arrays
    mask = jnp.asarray(PROBLEM.options["mask"])

    def penalty(query, mask):
        def total(query):
            output = regard.jax.scaled_dot_product_attention(
                query, key, value, jax.lax.stop_gradient(mask)
            )
            return (output**2).sum()

        return (jax.grad(total)(query) ** 2).sum()

    of_query, of_mask = jax.jit(jax.grad(penalty, argnums=(0, 1)))(query, mask)
    assert np.abs(of_query).max() > 0
    assert not np.asarray(of_mask).any()


HIDDEN = {
    "bool mask": {"mask": np.array([[True], [False], [True], [False]])},
    "float mask": {"mask": np.array([[0.0], [-np.inf], [0.5], [-np.inf]], np.float32)},
    "no keys": {"key_lengths": np.array([3, 0])},
    "causal": {"is_causal": True, "query_offset": -2},
}


@pytest.mark.parametrize("transform", [lambda function: function, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN)
def test_gradients_of_rows_without_keys_under_debug_infs(options, dtype, transform):
    """JAX refuses any infinity that a function returns, even if only its gradient reads it."""
    rng = np.random.default_rng(5)
    inputs = tuple(rng.standard_normal((2, 2, 4, 8)).astype(dtype) for _ in range(3))
    grad = rng.standard_normal((2, 2, 4, 8)).astype(dtype)

    @transform
    def gradients(*inputs):
        function = functools.partial(regard.jax.scaled_dot_product_attention, **options)
        return jax.vjp(function, *inputs)[1](grad)

    @transform
    def second(*inputs):
        return jax.grad(lambda *each: (gradients(*each)[0] * each[1]).sum())(*inputs)

    output, lse = regard.scaled_dot_product_attention(*inputs, **options, return_lse=True)
    assert np.isneginf(lse).any()
    wanted = regard.scaled_dot_product_attention_backward(grad, *inputs, output, lse, **options)
    with jax.debug_infs(True), jax.debug_nans(True):
        actual = gradients(*inputs)
        again = second(*inputs)
    for one, other in zip(actual, (wanted.query, wanted.key, wanted.value), strict=True):
        assert_same_bits(np.asarray(one), other)
    assert_same_bits(np.asarray(again), np.asarray(second(*inputs)))
