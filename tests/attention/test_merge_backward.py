"""Test the gradients of merged attention states against the formula, and attention over two sets of
keys, merged and differentiated, against one call."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import error_limits
import gradient_reference
import reference
import regard
from drawn_problems import TARGETS, examples, on_target, problems
from element_types import type_named
from error_limits import half_ulp
from problem import drawn
from reference import arithmetic, assert_same_bits

sdpa = regard.scaled_dot_product_attention
merge = regard.merge_attention_states
merge_backward = regard.merge_attention_states_backward
INF, NAN = np.inf, np.nan


def states(dtype, shapes, spread=2.0, value_dim=4):
    """Return outputs and lses of parts, and the gradients of the merged output and lse."""
    dtype = type_named(dtype)
    inner = arithmetic(dtype)
    outputs = [drawn((*shape, value_dim), dtype, i) for i, shape in enumerate(shapes)]
    lses = [(spread * drawn(shape, float, 50 + i)).astype(inner) for i, shape in enumerate(shapes)]
    full = np.broadcast_shapes(*shapes)
    return outputs, lses, drawn((*full, value_dim), dtype, 98), drawn(full, inner, 99)


def check_gradients(outputs, lses, grad_output, grad_lse, limit=1.0):
    """Check the gradients. The shares are off by eps of the sum of squares of the two lse that form
    them."""
    actual = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    assert type(actual) is tuple
    assert [type(part) for part in actual] == [list, list]
    exact = gradient_reference.merge_backward(
        grad_output, outputs, lses, grad_lse=grad_lse, precision=np.longdouble
    )
    dtype = np.result_type(np.float32, *(x.dtype for x in lses))
    eps = float(np.finfo(dtype).eps)
    tops = [np.abs(x.astype(float))[np.isfinite(x)].max(initial=0) for x in lses]
    share = eps * (len(lses) + 4 + 2 * max(tops, default=0))
    grads = np.abs(grad_output.astype(float))
    sizes = [np.abs(x.astype(float)).max(initial=0) for x in outputs]
    stored = max(float(half_ulp(max(sizes, default=0), outputs[0].dtype)), eps * max(sizes))
    product = grads.sum(axis=-1).max(initial=0)
    extra = 0 if grad_lse is None else np.abs(grad_lse.astype(float)).max(initial=0)
    allowed = (
        share * grads.max(initial=0),
        share * (2 * product * max(sizes, default=0) + extra) + 2 * stored * product,
    )
    for parts, wanted, inputs, bound in zip(actual, exact, (outputs, lses), allowed, strict=True):
        for part, right, like, rows in zip(parts, wanted, inputs, lses, strict=True):
            assert part.dtype == like.dtype
            assert part.shape == like.shape
            # The gradients of a broadcast part are summed.
            count = max(grad_output[..., 0].size // max(rows.size, 1), 1)
            off = np.abs(part.astype(np.longdouble) - right) - half_ulp(np.abs(right), like.dtype)
            assert off.max(initial=0) <= limit * count * bound


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("parts", [1, 2, 3, 17])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_of_a_merger_are_the_formula(dtype, parts, spread):
    outputs, lses, grad_output, grad_lse = states(dtype, [(2, 40)] * parts, spread)
    check_gradients(outputs, lses, grad_output, grad_lse)
    check_gradients(outputs, lses, grad_output, None)
    zeros = merge_backward(
        *(grad_output, outputs, lses, *merge(outputs, lses)), grad_lse=np.zeros_like(grad_lse)
    )
    none = merge_backward(grad_output, outputs, lses, *merge(outputs, lses))
    for actual, wanted in zip(none, zeros, strict=True):
        for part, right in zip(actual, wanted, strict=True):
            assert np.array_equal(part, right)


BROADCASTS = {
    "batch": [(3, 7), (2, 3, 7)],
    "one": [(2, 3, 7), (2, 3, 1)],
    "all ways": [(2, 1, 7), (1, 3, 7), (3, 1), (2, 3, 7)],
    "row": [(7,), (2, 7)],
    "no rows": [(2, 0), (2, 0)],
    "no batch": [(0, 7), (1, 7)],
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_parts_that_broadcast_get_sums(name, dtype):
    check_gradients(*states(dtype.name, BROADCASTS[name]))


def test_a_part_that_saw_nothing_has_no_gradients(dtype):
    """This holds for each row, whatever its output holds and whatever the other gradients are, also
    where no part saw anything."""
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(3, 20)] * 3)
    lses[1][:, ::2] = -INF
    lses[2][0] = -INF
    for part, lse in zip(outputs, lses, strict=True):
        part[:, 5], lse[:, 5] = 0, -INF
    clean = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    check_gradients(outputs, lses, grad_output, grad_lse)
    merged = merge(outputs, lses)
    outputs[1][:, ::2], outputs[2][0], grad_output[:, 5] = NAN, INF, NAN
    actual = merge_backward(grad_output, outputs, lses, *merged, grad_lse=grad_lse)
    for mine, right in zip(actual, clean, strict=True):
        for part, like in zip(mine, right, strict=True):
            assert_same_bits(part, like)
        assert not mine[1][:, ::2].any()
        assert not mine[2][0].any()
        assert not any(part[:, 5].any() for part in mine)


def test_nan_in_a_row_shows_in_its_gradients_alone(dtype):
    names = ("outputs", "lses", "grad_output", "grad_lse")
    for name in names:
        outputs, lses, grad_output, grad_lse = states(dtype.name, [(3, 20)] * 2)
        clean = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
        spoiled = {"outputs": outputs[0], "lses": lses[0]}
        spoiled |= {"grad_output": grad_output, "grad_lse": grad_lse}
        spoiled[name][1, 4] = NAN
        merged = merge(outputs, lses)
        actual = merge_backward(grad_output, outputs, lses, *merged, grad_lse=grad_lse)
        others = np.ones((3, 20), bool)
        others[1, 4] = False
        for mine, right in zip(actual, clean, strict=True):
            for part, like in zip(mine, right, strict=True):
                assert_same_bits(part[others], like[others])
        assert np.isnan(actual[1][0][1, 4])


# Parts of the keys


def halves(problem, split):
    """Return the keys before and from `split` on as two problems; the first has the sinks."""
    first, second = problem.keys(0, split), problem.keys(split, problem.key.shape[-2])
    second.options.pop("sinks", None)
    return first, second


@hypothesis.given(
    problem=problems(types=["float32", "float64"], mixed=False, dropout=False, ends=False),
    target=TARGETS,
    share=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
@examples(100)
def test_two_halves_are_the_whole(problem, target, share):
    """Attention over two sets of keys, merged and differentiated, has the results and gradients of
    one call. Each half counts by its lse, so an error in its lse is an error of its weight; exp,
    sums and a division are worth 4 eps (1 + |lse|)."""
    problem = problem.whole()
    split = int(share * problem.key.shape[-2])
    parts, outputs, lses, gradients = halves(problem, split), [], [], []
    with on_target(target):
        for part in parts:
            output, lse = sdpa(*part.arrays, **part.options, return_lse=True)
            outputs.append(output)
            lses.append(lse)
        merged = merge(outputs, lses)
        grads = merge_backward(
            problem.grad_output, outputs, lses, *merged, grad_lse=problem.grad_lse
        )
        for part, *state, own, own_lse in zip(parts, outputs, lses, *grads, strict=True):
            part = dataclasses.replace(part, grad_output=own, grad_lse=own_lse)
            gradients.append(part.gradients(state, with_respect_to=("query", "key", "value")))
    whole = error_limits.expected(*problem.arrays, **problem.options)
    limits = [error_limits.expected(*part.arrays, **part.options).limit for part in parts]
    eps = float(np.finfo(problem.query.dtype).eps)
    finite = whole.exact.lse[np.isfinite(whole.exact.lse)]
    allowed = sum(limit.lse for limit in limits) + 4 * eps * (1 + reference.largest(finite))
    assert reference.error(merged[1], whole.exact.lse) <= allowed
    allowed = allowed * reference.largest(problem.value) + sum(limit.output for limit in limits)
    assert reference.error(merged[0], whole.exact.output) <= allowed
    assert not merged[0][~whole.seen.any(axis=-1)].any()
    first, second = gradients
    actual = {"query": first.query + second.query}
    for name in ("key", "value"):
        actual[name] = np.concatenate([getattr(x, name) for x in gradients], axis=-2)
    want = problem.expected()
    for name, gradient in actual.items():
        exact, limit = getattr(want, name)
        # Each part has the same error as the whole, and reads an output and an lse that are
        # rounded.
        off = np.abs(gradient - exact).max(initial=0)
        assert off <= 4 * limit, f"{name}: error {off:.3g}, allowed {4 * limit:.3g}"
