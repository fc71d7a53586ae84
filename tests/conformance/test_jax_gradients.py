"""Derivatives of JAX's attention, mode by mode.

JAX computes in float32 and nothing wider, so JAX and regard are both compared with the limits of
the oracle: two results within a limit of the exact one differ by at most two limits. JAX's lse has
no derivatives.
"""

import functools

import numpy as np
import pytest

import gradient_reference
import regard
from gradient_cases import GradientProblem, drawn, judge
from reference import error
from test_bshd_peers import JAX, in_our_words

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install '.[conformance]'")
ROLES = ("query", "key", "value")
SLOW = [pytest.param(mode, marks=pytest.mark.slow) for i, mode in enumerate(JAX) if i % 3]
each_mode = pytest.mark.parametrize("mode", [*JAX[::3], *SLOW], ids=lambda mode: mode.name)


def swapped(array):
    """Return JAX's (batch, length, heads, dim) in regard's order, or the reverse. Views suffice,
    since regard reads both."""
    return array.swapaxes(-3, -2)


def problem_of(mode):
    """Return regard's problem, and which queries mean something: JAX sets the output of others to
    0."""
    arrays, options = mode.build()
    arrays = [swapped(array) for array in arrays]
    words = in_our_words(options)
    if "bias" in options and "mask" in options:
        words["mask"] = options["mask"], options["bias"]
    shape = arrays[0].shape
    rows = np.ones(shape[:-1], bool)
    if "query_seq_lengths" in options:
        rows &= np.arange(shape[-2]) < options["query_seq_lengths"][:, None, None]
    grad_output = rows[..., None] * drawn(shape, np.float32)
    return GradientProblem(*arrays, words, grad_output, np.zeros(shape[:-1], np.float32)), rows


def directions_of(problem):
    return [drawn(x.shape, np.float32, 3 + i) for i, x in enumerate(problem.arrays)]


@functools.cache
def derived(mode):
    """Return JAX's gradients of all inputs, the and the tangent of the output.

    They are compiled together: operation by operation they take seconds.
    """
    arrays, options = mode.build()
    bias = options.pop("bias", None)
    inputs = arrays if bias is None else [*arrays, bias]
    problem, _ = problem_of(mode)
    grad_output = swapped(problem.grad_output)
    directions = tuple(map(swapped, directions_of(problem)))

    def attention(query, key, value, bias=bias):
        return jax.nn.dot_product_attention(query, key, value, bias=bias, **options)

    def gradients(grad_output, *inputs):
        _, pull = jax.vjp(attention, *inputs)
        return pull(grad_output)

    @jax.jit
    def everything():
        _, tangent = jax.jvp(attention, tuple(arrays), directions)
        return gradients(grad_output, *inputs), tangent

    (*three, of_bias), tangent = jax.tree.map(np.asarray, everything())
    if bias is None:
        three, of_bias = [*three, of_bias], None
    return list(map(swapped, three)), of_bias, swapped(tangent)


def assert_alike(name, actual, theirs, judged):
    assert actual.dtype == theirs.dtype, name
    assert actual.shape == theirs.shape, name
    off = error(actual, theirs)
    assert off <= 2 * judged.limit, f"{name}: differs by {off:.3g}, allowed {2 * judged.limit:.3g}"


@each_mode
def test_gradients(mode, target):
    problem, _ = problem_of(mode)
    three, of_bias, _ = derived(mode)
    wanted = dict(zip(ROLES, three, strict=True))
    if of_bias is not None:
        wanted["mask"] = of_bias
    actual, judged = problem.gradients(), problem.expected()
    for name, theirs in wanted.items():
        assert_alike(name, getattr(actual, name), theirs, getattr(judged, name))


@each_mode
def test_tangents(mode, target):
    problem, rows = problem_of(mode)
    arrays = *problem.arrays, *directions_of(problem)
    _, _, theirs = derived(mode)
    _, actual = regard.scaled_dot_product_attention_jvp(*arrays, **problem.options)
    judged = judge(gradient_reference.jvp, problem, *arrays).tangent_output
    assert_alike("tangent", actual[rows], theirs[rows], judged)
