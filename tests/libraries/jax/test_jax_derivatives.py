"""Derivatives of higher order and in forward mode of the call on JAX arrays, what they compute, and
what they leave out."""

import functools

import numpy as np
import pytest
from test_jax_transforms import GIVEN, INPUTS, PROBLEM, ROLES, attend

import gradient_reference
import regard
from cases import build
from element_types import each_in_one_type
from error_limits import assert_within, judge
from option_cases import FEW, MIXES
from problem import drawn
from reference import assert_same_bits

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import regard.jax  # noqa: E402


def function_of(problem):
    """Return the call as a function of the inputs with gradients, by name; all its other arrays are
    constants."""

    def function(inputs):
        given, options = dict(inputs), dict(problem.options)
        arrays = [given.pop(role) for role in ROLES]
        if "mask" in given:
            mask = given.pop("mask")
            is_pair = isinstance(options["mask"], tuple)
            options["mask"] = (options["mask"][0], mask) if is_pair else mask
        return regard.jax.scaled_dot_product_attention(*arrays, **options | given, return_lse=True)

    return function


SECOND = [*MIXES[1::24], *FEW[2::5]]


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


@each_in_one_type(SECOND, "storage", quick=3)
def test_gradients_of_gradients(case, storage):
    check_second(build(case, storage))


def loss(given):
    output, lse = attend(given, regard.jax.scaled_dot_product_attention)
    return (output**2).sum() + jnp.sin(lse).sum()


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
def test_second_derivatives_of_all_inputs():
    """They are compared with differences."""
    given = {name: GIVEN[name] / 20 if name in ROLES else GIVEN[name] for name in INPUTS}
    function = jax.jit(lambda inputs: loss(GIVEN | inputs))
    check_grads(function, (given,), 2, rtol=1e-6, eps=1e-5)


HIDDEN = {
    "bool mask": {"mask": np.array([[True], [False], [True], [False]])},
    "float mask": {"mask": np.array([[0.0], [-np.inf], [0.5], [-np.inf]], np.float32)},
    "no keys": {"key_lengths": np.array([3, 0])},
    "causal": {"is_causal": True, "query_offset": -2},
}


@pytest.mark.parametrize("options", HIDDEN.values(), ids=HIDDEN)
def test_gradients_of_rows_without_keys_under_debug_infs(options):
    """JAX refuses any infinity that a function returns, even if only its gradient reads it."""
    dtype = np.float16
    rng = np.random.default_rng(5)
    inputs = tuple(rng.standard_normal((2, 2, 4, 8)).astype(dtype) for _ in range(3))
    grad = rng.standard_normal((2, 2, 4, 8)).astype(dtype)

    @jax.jit
    def gradients(*inputs):
        function = functools.partial(regard.jax.scaled_dot_product_attention, **options)
        return jax.vjp(function, *inputs)[1](grad)

    @jax.jit
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


@pytest.mark.parametrize("transform", ["jvp of vmap", "vmap of jvp", "scan", "checkpoint"])
def test_transformed_forward_mode(transform):
    """Each of three queries moves, and the keys are shared."""
    query, key, value, direction = drawn((4, 3, 2, 5, 4), np.float64)
    key, value = key[0], value[0]

    def attend(query, key):
        return regard.jax.scaled_dot_product_attention(query, key, value, is_causal=True)

    def by_scan(queries, key):
        return jax.lax.scan(lambda _, query: (None, attend(query, key)), None, queries)[1]

    def by_checkpoints(queries, key):
        return jnp.stack([jax.checkpoint(attend)(query, key) for query in queries])

    mapped = jax.vmap(attend, (0, None))
    attend_all = {"jvp of vmap": mapped, "scan": by_scan, "checkpoint": by_checkpoints}

    def along(query, direction):
        function = attend_all.get(transform, attend)
        return jax.jvp(function, (query, key), (direction, key))[1]

    actual = jax.jit(along if transform in attend_all else jax.vmap(along))(query, direction)
    wanted = [
        regard.scaled_dot_product_attention_jvp(q, key, value, d, key, None, is_causal=True)[1]
        for q, d in zip(query, direction, strict=True)
    ]
    assert_same_bits(np.asarray(actual), np.stack(wanted))


@pytest.mark.parametrize("name", ["float_mask", "alibi_slopes", "distance_bias", "sinks"])
def test_forward_mode_along_other_inputs(name):
    """It agrees with reverse mode, whose gradients are tested against the oracle."""
    given = dict(GIVEN)
    step = drawn(given[name].shape, np.float64, 3)
    given |= {role: given[role] / 20 for role in ROLES}

    def of(x):
        return loss(given | {name: x})

    _, actual = jax.jit(lambda *x: jax.jvp(of, *x))((given[name],), (step,))
    wanted = (jax.jit(jax.grad(of))(given[name]) * step).sum()
    assert abs(float(actual - wanted)) <= 1e-12 * abs(float(wanted))
