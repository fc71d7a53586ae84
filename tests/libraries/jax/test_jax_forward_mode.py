"""Test derivatives of the call on JAX arrays along tangents, in forward mode, against the oracle
and against `scaled_dot_product_attention_jvp`."""

import numpy as np
import pytest
from test_jax_attention import named
from test_jax_derivatives import PROBLEM, ROLES, function_of, loss

import gradient_reference
import regard
from gradient_cases import assert_within, drawn, judge
from reference import assert_same_bits

jax = pytest.importorskip("jax", reason='JAX is not installed: pip install ".[jax]"')

import regard.jax  # noqa: E402


def check_tangents(problem, moved):
    """Check the derivative of the output and lse along random tangents of some inputs."""
    function = function_of(problem)
    inputs = {name: np.asarray(x) for name, x in problem.inputs.items()}
    directions = {
        role: drawn(getattr(problem, role).shape, inputs[role].dtype, 7 + i)
        if role in moved
        else np.zeros_like(inputs[role])
        for i, role in enumerate(ROLES)
    }
    constants = {name: x for name, x in inputs.items() if name not in moved}

    @jax.jit
    def along(inputs, directions):
        return jax.jvp(lambda some: function(constants | some), (inputs,), (directions,))

    given, steps = ({role: each[role] for role in moved} for each in (inputs, directions))
    primals, tangents = along(given, steps)
    assert_same_bits(tuple(map(np.asarray, primals)), problem.attend())
    arrays = *problem.arrays, *directions.values()
    exact = judge(gradient_reference.jvp, problem, *arrays)
    for name, actual in zip(("tangent_output", "tangent_lse"), tangents, strict=True):
        actual = np.asarray(actual)
        assert_within(getattr(exact, name), actual, actual.dtype, name)
    same = regard.scaled_dot_product_attention_jvp(
        *problem.arrays,
        *(directions[role] if role in moved else None for role in ROLES),
        **problem.options,
        return_lse=True,
    )
    assert_same_bits(tuple(map(np.asarray, tangents)), (same[1], same[3]))


@pytest.mark.parametrize("moved", [("query",), ("key",), ("query", "value")])
def test_forward_mode_along_some_arrays(moved):
    check_tangents(PROBLEM, moved)


@pytest.mark.parametrize("transform", ["jvp of vmap", "vmap of jvp", "scan", "checkpoint"])
def test_transformed_forward_mode(transform):
    """Each of three queries moves, and the keys are shared."""
    query, key, value, direction = drawn((4, 3, 2, 5, 4), np.float64)
    key, value = key[0], value[0]

    def attend(query, key):
        return regard.jax.scaled_dot_product_attention(query, key, value, is_causal=True)

    def along(query, direction):
        return jax.jvp(attend, (query, key), (direction, key))[1]

    if transform == "jvp of vmap":
        function = jax.vmap(attend, (0, None))
        actual = jax.jit(lambda q, d: jax.jvp(function, (q, key), (d, key))[1])(query, direction)
    elif transform == "vmap of jvp":
        actual = jax.jit(jax.vmap(along))(query, direction)
    elif transform == "scan":

        def attend_all(query, key):
            return jax.lax.scan(lambda _, each: (None, attend(each, key)), None, query)[1]

        actual = jax.jit(lambda q, d: jax.jvp(attend_all, (q, key), (d, key))[1])(query, direction)
    else:
        attend = jax.checkpoint(attend)
        actual = np.stack([along(*each) for each in zip(query, direction, strict=True)])
    wanted = [
        regard.scaled_dot_product_attention_jvp(q, key, value, d, key, None, is_causal=True)[1]
        for q, d in zip(query, direction, strict=True)
    ]
    assert_same_bits(np.asarray(actual), np.stack(wanted))


@pytest.mark.parametrize("name", ["float_mask", "alibi_slopes", "distance_bias", "sinks"])
def test_forward_mode_along_other_inputs(name):
    """It agrees with reverse mode, whose gradients are tested against the oracle."""
    given = named(PROBLEM)
    step = drawn(given[name].shape, np.float64, 3)
    given |= {role: given[role] / 20 for role in ROLES}

    def of(x):
        return loss(given | {name: x})

    _, actual = jax.jvp(of, (given[name],), (step,))
    wanted = (jax.grad(of)(given[name]) * step).sum()
    assert abs(float(actual - wanted)) <= 1e-12 * abs(float(wanted))
