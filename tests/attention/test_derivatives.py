"""The gradients of attention and its derivatives along tangents, compared with the formula in wider
arithmetic: with every option, type and kind of broadcast. (test_same_bits has what changes no bit.)
"""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import gradient_reference
import regard
from cases import Case, build
from drawn_problems import TARGETS, examples, on_target, problems
from element_types import each_in_one_type
from error_limits import assert_within, half_ulp, judge
from option_cases import LONG
from problem import Problem, drawn
from reference import arithmetic, assert_same_bits, largest, result_type, solve

sdpa = regard.scaled_dot_product_attention
sdpa_backward = regard.scaled_dot_product_attention_backward
sdpa_jvp = regard.scaled_dot_product_attention_jvp
ROLES = ("query", "key", "value")


def check_gradients(problem, **extra):
    """Check every gradient, its shape and its type; inputs without a gradient have None."""
    actual, want = problem.gradients(**extra), problem.expected()
    assert type(actual) is regard.AttentionGradients
    assert actual._fields == want._fields
    for name, gradient in actual._asdict().items():
        if name not in problem.inputs:
            assert gradient is None, name
        else:
            assert_within(getattr(want, name), gradient, problem.inputs[name].dtype, name)


def tangents_of(problem, seed=3):
    return tuple(drawn(x.shape, x.dtype, seed + i) for i, x in enumerate(problem.arrays))


def along(problem, tangents, **extra):
    """Return the output, its tangent, lse and its tangent."""
    options = problem.options | {"return_lse": True} | extra
    return sdpa_jvp(*problem.arrays, *tangents, **options)


def check_tangents(problem, tangents, **extra):
    zeros = [0 * x if t is None else t for x, t in zip(problem.arrays, tangents, strict=True)]
    want = judge(gradient_reference.jvp, problem, *problem.arrays, *zeros)
    actual = along(problem, tangents, **extra)
    dtype = result_type(*problem.arrays)
    for name, judged, part in zip(want._fields, want, actual, strict=True):
        is_lse = name.endswith("lse")
        assert_within(judged, part, arithmetic(dtype) if is_lse else dtype, name)
    assert_same_bits(along(problem, tangents, return_lse=False), actual[:2])
    return want


@hypothesis.given(problem=problems(), target=TARGETS, threads=st.integers(1, 3))
@examples(300)
def test_gradients(problem, target, threads):
    with on_target(target):
        check_gradients(problem, threads=threads)


@hypothesis.given(
    problem=problems(), target=TARGETS, missing=st.sampled_from([(), (), (0,), (1, 2), (2,)])
)
@examples(200)
def test_tangents(problem, target, missing):
    """No tangent is one of zeros."""
    tangents = [None if i in missing else t for i, t in enumerate(tangents_of(problem))]
    with on_target(target):
        check_tangents(problem, tangents)


@each_in_one_type(LONG, "storage")
def test_several_chunks_of_keys(case, storage, target):
    problem = build(case, storage)
    check_gradients(problem)
    check_tangents(problem, tangents_of(problem))


# What is visible shows: NaN in one element appears exactly where the formula has it, and changes
# no other bit.


@hypothesis.given(problem=problems(gaussian=True, ends=False), target=TARGETS, data=st.data())
@examples(150)
def test_nan_shows_where_it_is_seen(problem, target, data):
    problem = problem.whole()
    if "mask" in problem.options and "mask" in problem.inputs:
        shape = (*problem.grad_lse.shape, problem.key.shape[-2])
        problem = dataclasses.replace(
            problem, options=problem.with_masks(lambda m: np.broadcast_to(m, shape).copy())
        )
    seen = solve(*problem.arrays, **problem.options).seen
    places = np.argwhere(seen)
    hypothesis.assume(len(places))
    *b, h, i, j = places[data.draw(st.integers(0, len(places) - 1))]
    kv_h = h // (problem.query.shape[-3] // problem.key.shape[-3])
    column = data.draw(st.sampled_from([0, -1]))
    index = {"query": (*b, h, i, column), "key": (*b, kv_h, j, -1), "value": (*b, kv_h, j, column)}
    index |= {"grad_output": (*b, h, i, column), "grad_lse": (*b, h, i)}
    name = data.draw(st.sampled_from(list(index)))
    array = getattr(problem, name).copy()
    array[index[name]] = np.nan
    spoiled = dataclasses.replace(problem, **{name: array})
    with on_target(target):
        state = problem.attend(), spoiled.attend()
        clean, actual = problem.gradients(state[0]), spoiled.gradients(state[1])
        tangents = tangents_of(problem)
        moved = along(problem, tangents), along(spoiled, tangents)
    want = gradient_reference.backward(
        *(spoiled.grad_output, *spoiled.arrays), **spoiled.options, grad_lse=spoiled.grad_lse
    )
    assert any(np.isnan(x).any() for x in actual if x is not None)
    for gradient, exact, before in zip(actual, want, clean, strict=True):
        if gradient is not None:
            assert_same_bits(np.isnan(gradient), np.isnan(exact))
            assert_same_bits(*(x[~np.isnan(exact)] for x in (gradient, before)))
    want = gradient_reference.jvp(*spoiled.arrays, *tangents, **problem.options)
    for exact, part, before in zip(want, moved[1], moved[0], strict=True):
        assert_same_bits(np.isnan(part), np.isnan(exact))
        assert_same_bits(*(x[~np.isnan(exact)] for x in (part, before)))


SHAPES = {"query": (4, 40, 12), "key": (2, 205, 12), "value": (2, 205, 20)}


@pytest.mark.parametrize("sinks", [None, 0.5])
def test_fully_masked_rows(sinks, storage, target):
    """The lse of such a row is its sink's logit, whose gradient is the gradient of lse."""
    seen = np.random.default_rng(0).random((4, 40, 205)) < 0.5
    seen[:, [0, 3, 17, 39]] = False
    problem = build(Case("blind rows", **SHAPES, sinks=sinks), storage, 0.0)
    grad_lse = np.where(seen.any(axis=-1), 0, drawn((4, 40), arithmetic(storage), 5))
    changes = {"options": problem.options | {"mask": seen}, "grad_lse": grad_lse}
    changes["grad_output"] = np.zeros_like(problem.grad_output)
    only = dataclasses.replace(problem, **changes).gradients()
    assert not any(gradient.any() for gradient in only[:3])
    if sinks is not None:
        assert np.allclose(only.sinks, grad_lse.astype(np.float64).sum(axis=-1), 1e-5, 1e-5)


@pytest.mark.parametrize("constant", [-1e32, -3e15, -7e7])
def test_a_row_with_a_large_constant_spoils_no_other(constant, target):
    """The row's lse is rounded by much more than 1, and its gradient of the output is 0."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((3, 2, 20, 16), dtype=np.float32)
    grad_output = random.standard_normal((2, 20, 16), dtype=np.float32)
    grad_output[:, 7] = 0
    mask = np.zeros((20, 20), np.float32)

    def gradients(bias, dtype):
        arrays = [array.astype(dtype) for array in inputs]
        state = sdpa(*arrays, bias, return_lse=True)
        return sdpa_backward(grad_output.astype(dtype), *arrays, *state, bias)[:3]

    exact = gradients(mask, np.float64)
    mask[7] = constant
    mine = gradients(mask, np.float32)
    assert np.isfinite(mine[0]).all()
    for actual, wanted in zip(mine, exact, strict=True):
        rows = np.arange(20) != 7 if actual is mine[0] else slice(None)
        assert np.abs(actual - wanted)[:, rows].max() < 1e-5


@pytest.mark.parametrize("sink", [2.3e38, 3.4e38])
def test_sinks_as_large_as_the_range(sink, target):
    """The sink has all weight: it gets the gradient of lse, and no other gradient is NaN."""
    arrays, sinks = [drawn((2, 9, 16), np.float32)] * 3, np.full(2, sink)
    output, lse = sdpa(*arrays, sinks=sinks, return_lse=True)
    assert (output == 0).all()
    asked = {"grad_lse": np.ones_like(lse), "with_respect_to": (*ROLES, "sinks")}
    grads = sdpa_backward(np.ones_like(output), *arrays, output, lse, sinks=sinks, **asked)
    assert (grads.sinks == 9).all()
    assert not any(part.any() for part in grads[:3])


# The call: its arguments and types


def test_gradients_of_lists_are_of_float64(target):
    arrays = [drawn(shape, np.float64, 2) for shape in ((3, 4), (5, 4), (5, 2))]
    grad_output, state = drawn((3, 2), np.float64, 3), sdpa(*arrays, return_lse=True)
    wanted = sdpa_backward(grad_output, *arrays, *state)
    lists = [x.tolist() for x in (grad_output, *arrays, *state)]
    assert_same_bits(sdpa_backward(*lists)[:3], wanted[:3])
    assert_same_bits(sdpa_jvp(*lists[1:4], *lists[1:4]), sdpa_jvp(*arrays, *arrays))


def test_a_float64_gradient_of_a_float32_call_is_rounded(target):
    """As by a NumPy user whose loss is computed in float64."""
    query, key, value, grad_output = (drawn((2, 9, 16), np.float32, i) for i in range(4))
    wide = grad_output.astype(np.float64) * (1 + 2.0**-40)
    state = sdpa(query, key, value, return_lse=True)
    wanted = sdpa_backward(grad_output, query, key, value, *state)[:3]
    for given in (wide, wide.astype(">f8")):
        assert_same_bits(sdpa_backward(given, query, key, value, *state)[:3], wanted)
    narrow = sdpa_jvp(query, key, value, grad_output, None, None)
    assert_same_bits(sdpa_jvp(query, key, value, wide, None, None), narrow)


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_derivatives_of_empty_arrays_are_zero(lengths, batch, dtype, target):
    q_len, kv_len = lengths
    shapes = (*batch, 4, q_len, 5), (*batch, 2, kv_len, 5), (*batch, 2, kv_len, 3)
    options = {"float_mask": (4, q_len, kv_len), "alibi_slopes": 0.3, "sinks": 1.0}
    case = Case(f"empty {batch} {lengths}", *shapes, **options, distance_bias=3)
    problem = build(case, dtype, 0.3)
    problem = dataclasses.replace(problem, grad_lse=np.zeros_like(problem.grad_lse))
    gradients = problem.gradients()
    for name, array in problem.inputs.items():
        assert_same_bits(np.abs(getattr(gradients, name)), np.zeros_like(array))
    _, of_output, lse, of_lse = along(problem, tangents_of(problem))
    assert not of_output.any()
    assert not of_lse.any()
    assert lse.shape == (*batch, 4, q_len)


@pytest.mark.parametrize("shape", [(), (150,), (2, 1, 1, 150), (4, 1, 150), (4, 1, 1)], ids=str)
def test_a_mask_that_is_broadcast_has_the_gradients_of_its_copy(shape, dtype, target):
    """There are many rows. The gradient of a mask without rows must not be summed in another
    order."""
    case = Case("many rows", (2, 4, 130, 16), (2, 2, 150, 16), (2, 2, 150, 11), float_mask=shape)
    problem = build(case, dtype, 0.0)
    assert_same_bits(problem.gradients()[:3], problem.whole().gradients()[:3])


@pytest.mark.parametrize("batch", [1, 3])
def test_heads_of_a_query_share_a_row_of_a_mask(batch, dtype, target):
    """Seven query heads share a key head, so a query's rows would be split between threads if the
    threads divided the strips."""
    query, mask = drawn((batch, 7, 200, 8), dtype), drawn((200, 30), dtype, 1)
    key, value = drawn((2, batch, 1, 30, 8), dtype, 2)
    output, lse = sdpa(query, key, value, mask, return_lse=True)
    given = output, query, key, value, output, lse, mask

    def of_mask(threads):
        return sdpa_backward(*given, with_respect_to=["mask"], threads=threads).mask

    wide = [x.astype(float) for x in (output, query, key, value)]
    exact = gradient_reference.backward(*wide, mask).mask
    assert np.abs(of_mask(1) - exact).max() < 1000 * np.finfo(dtype).eps
    for threads in [2, 3, 5] * 3:
        assert_same_bits(of_mask(threads), of_mask(1))


# Accuracy: many elements average out luck

YARDSTICKS = {
    "64": (2, 64, 64, 64, {}),
    "128-causal": (2, 128, 128, 64, {"is_causal": True}),
    "700": (1, 48, 700, 128, {}),
}


def in_few_bits(problem):
    """Compute the formula as a program does that keeps everything in 16 bits, product by
    product."""

    def r(x):
        return x.astype(problem.query.dtype).astype(np.float32)

    query, key, value, grads = map(r, (*problem.arrays, problem.grad_output))
    factor = np.float32(1 / np.sqrt(query.shape[-1]))
    scores = r(factor * r(query @ key.swapaxes(-1, -2)))
    if problem.options.get("is_causal"):
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    terms = np.exp(scores - scores.max(-1, keepdims=True))
    weights = r(terms / terms.sum(-1, keepdims=True))
    of_weights = r(grads @ value.swapaxes(-1, -2))
    of_scores = r(weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True)))
    of_scores = r(factor * of_scores)
    of_key, of_value = of_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ grads
    return r(of_scores @ key), r(of_key), r(of_value)


@pytest.mark.parametrize("name", YARDSTICKS)
def test_errors_of_halves_are_at_most_twice_those_of_the_formula(name, half, target):
    """This is the criterion of FlashAttention's tests, plus one rounding of the result."""
    heads, q_len, kv_len, dim, options = YARDSTICKS[name]
    lengths = q_len, kv_len, kv_len, q_len
    arrays = [drawn((heads, n, dim), half, i) for i, n in enumerate(lengths)]
    grad_lse = np.zeros((heads, q_len), arithmetic(half))
    problem = Problem(*arrays[:3], options, arrays[3], grad_lse)
    want, plain = problem.expected(), in_few_bits(problem)
    for gradient, (exact, _), naive in zip(problem.gradients()[:3], want[:3], plain, strict=True):
        off = np.abs(gradient.astype(np.float64) - exact) - half_ulp(np.abs(exact), half)
        assert off.max() <= 2 * largest(naive - exact)
