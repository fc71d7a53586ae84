"""Test the gradients of merged attention states against the formula."""

import numpy as np
import pytest

import gradient_reference
import regard
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
