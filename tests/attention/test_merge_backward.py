"""Test the gradients of merged attention states against the formula, and against the gradients of
attention over all keys."""

import numpy as np
import pytest

import gradient_reference
import regard
from cases import LAYOUTS
from element_types import each_in_one_type, type_named
from gradient_cases import GradientProblem, build, drawn
from messages import says
from option_cases import MIXES
from reference import arithmetic, assert_same_bits, half_ulp

merge = regard.merge_attention_states
merge_backward = regard.merge_attention_states_backward
INF, NAN = float("inf"), float("nan")
TYPES = ["float16", "bfloat16", "float32", "float64"]


def states(dtype, shapes, spread=2.0, value_dim=4):
    """Return outputs and lses of parts, and the gradients of the merged output and lse."""
    dtype = type_named(dtype)
    inner = arithmetic(dtype)
    outputs = [drawn((*shape, value_dim), dtype, i) for i, shape in enumerate(shapes)]
    lses = [(spread * drawn(shape, float, 50 + i)).astype(inner) for i, shape in enumerate(shapes)]
    full = np.broadcast_shapes(*shapes)
    return outputs, lses, drawn((*full, value_dim), dtype, 98), drawn(full, inner, 99)


def check(outputs, lses, grad_output, grad_lse, limit=1.0):
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
@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_a_merger_are_the_formula(dtype, parts, spread):
    outputs, lses, grad_output, grad_lse = states(dtype, [(2, 40)] * parts, spread)
    check(outputs, lses, grad_output, grad_lse)
    check(outputs, lses, grad_output, None)
    zeros = merge_backward(
        *(grad_output, outputs, lses, *merge(outputs, lses)), grad_lse=np.zeros_like(grad_lse)
    )
    none = merge_backward(grad_output, outputs, lses, *merge(outputs, lses))
    for actual, wanted in zip(none, zeros, strict=True):
        for part, right in zip(actual, wanted, strict=True):
            assert np.array_equal(part, right)


SHAPES = {
    "batch": [(3, 7), (2, 3, 7)],
    "one": [(2, 3, 7), (2, 3, 1)],
    "all ways": [(2, 1, 7), (1, 3, 7), (3, 1), (2, 3, 7)],
    "row": [(7,), (2, 7)],
    "no rows": [(2, 0), (2, 0)],
    "no batch": [(0, 7), (1, 7)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_parts_that_broadcast_get_sums(name, dtype):
    check(*states(dtype.name, SHAPES[name]))


def test_one_array_with_the_parts_along_its_first_axis(dtype):
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(2, 40)] * 3)
    merged = merge(outputs, lses)
    wanted = merge_backward(grad_output, outputs, lses, *merged, grad_lse=grad_lse)
    stacked = np.stack(outputs), np.stack(lses)
    actual = merge_backward(grad_output, *stacked, *merged, grad_lse=grad_lse)
    for mine, right in zip(actual, wanted, strict=True):
        assert_same_bits(tuple(mine), tuple(right))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "byte_swapped"])
def test_states_elsewhere(layout, dtype):
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(2, 9)] * 3)
    wanted = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    lay = LAYOUTS[layout]
    outputs, lses = list(map(lay, outputs)), list(map(lay, lses))
    merged = map(lay, merge(outputs, lses))
    actual = merge_backward(lay(grad_output), outputs, lses, *merged, grad_lse=lay(grad_lse))
    for mine, right in zip(actual, wanted, strict=True):
        for part, like in zip(mine, right, strict=True):
            assert np.allclose(part, like, 8 * np.finfo(dtype).eps, 8 * np.finfo(dtype).eps)


def test_a_part_that_saw_nothing_has_no_gradients(dtype):
    """This holds for each row, whatever its output holds and whatever the other gradients are."""
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(3, 20)] * 3)
    lses[1][:, ::2] = -INF
    lses[2][0] = -INF
    clean = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    check(outputs, lses, grad_output, grad_lse)
    merged = merge(outputs, lses)
    outputs[1][:, ::2], outputs[2][0] = NAN, INF
    actual = merge_backward(grad_output, outputs, lses, *merged, grad_lse=grad_lse)
    for mine, right in zip(actual, clean, strict=True):
        for part, like in zip(mine, right, strict=True):
            assert_same_bits(part, like)
        assert not mine[1][:, ::2].any()
        assert not mine[2][0].any()


def test_a_row_that_no_part_saw_has_no_gradients(dtype):
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(3, 20)] * 2)
    for output, lse in zip(outputs, lses, strict=True):
        output[:, 5], lse[:, 5] = 0, -INF
    grad_output[:, 5] = NAN
    actual = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    for parts in actual:
        for part in parts:
            assert not part[:, 5].any()
            assert np.isfinite(part).all()


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


def halves(problem, split):
    """Return the keys before and from `split` on as two problems; the first has the sinks."""
    first, options = problem.keys(split), dict(problem.options)
    options["query_offset"] = np.asarray(options.get("query_offset", 0)) - split
    mask = options.get("mask")
    if mask is not None and mask.ndim and mask.shape[-1] > 1:
        options["mask"] = mask[..., split:]
    for name in ("key_lengths", "left_padding"):
        if options.get(name) is not None:
            options[name] = np.maximum(np.asarray(options[name]) - split, 0)
    options.pop("sinks", None)
    arrays = problem.query, problem.key[..., split:, :], problem.value[..., split:, :]
    return (first.arrays, first.options), (arrays, options)


@each_in_one_type(MIXES[::12], "dtype")
def test_gradients_through_halves_are_those_of_the_whole(case, dtype):
    """Attention over two sets of keys, merged and differentiated, has the gradients of one call."""
    problem = build(case, dtype, 0.0).whole()
    want = problem.expected()
    split = problem.key.shape[-2] // 3
    parts, outputs, lses = halves(problem, split), [], []
    for arrays, options in parts:
        output, lse = regard.scaled_dot_product_attention(*arrays, **options, return_lse=True)
        outputs.append(output)
        lses.append(lse)
    grads = merge_backward(
        problem.grad_output, outputs, lses, *merge(outputs, lses), grad_lse=problem.grad_lse
    )
    gradients = []
    for (arrays, options), output, lse, *own in zip(parts, outputs, lses, *grads, strict=True):
        part = GradientProblem(*arrays, options, *own)
        gradients.append(part.gradients((output, lse), with_respect_to=("query", "key", "value")))
    first, second = gradients
    actual = {"query": first.query + second.query}
    for name in ("key", "value"):
        actual[name] = np.concatenate([getattr(x, name) for x in gradients], axis=-2)
    for name, gradient in actual.items():
        exact, limit = getattr(want, name)
        # Each part has the same error as the whole, and reads an output and an lse that are
        # rounded.
        off = np.abs(gradient - exact).max(initial=0)
        assert off <= 4 * limit, f"{name}: error {off:.3g}, allowed {4 * limit:.3g}"


GOOD = {
    "grad_output": drawn((2, 5, 4), np.float32),
    "outputs": [drawn((2, 5, 4), np.float32, i) for i in range(3)],
    "lses": [drawn((2, 5), np.float32, i) for i in range(3)],
}
GOOD["output"], GOOD["lse"] = merge(GOOD["outputs"], GOOD["lses"])
ERRORS = {
    "none": ({"outputs": [], "lses": []}, ValueError, "outputs"),
    "numbers": ({"lses": GOOD["lses"][:2]}, ValueError, "outputs lses 3 2"),
    "grad-output": ({"grad_output": np.zeros((2, 5, 3), "f4")}, ValueError, "grad_output 3 4"),
    "grad-output-rank": ({"grad_output": np.zeros((5, 4), "f4")}, ValueError, "grad_output 5 4 2"),
    "output": ({"output": np.zeros((2, 6, 4), "f4")}, ValueError, "output 6 5"),
    "lse": ({"lse": np.zeros((2, 6), "f4")}, ValueError, "lse 6 5"),
    "grad-lse": ({"grad_lse": np.zeros((2, 6), "f4")}, ValueError, "grad_lse 6 5"),
    "shapes": ({"lses": [np.zeros((2, 6), "f4")] * 3}, ValueError, "lses 6 5"),
    "grad-output-complex": (
        {"grad_output": np.zeros((2, 5, 4), complex)},
        TypeError,
        "grad_output",
    ),
    "outputs-number": ({"outputs": 3}, TypeError, "outputs int"),
    "lses-text": ({"lses": ["a", "b", "c"]}, TypeError, r"lses[0]"),
    "outputs-complex": ({"outputs": [np.zeros((2, 5, 4), complex)] * 3}, TypeError, "outputs[0]"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name, silence):
    changes, error, words = ERRORS[name]
    with pytest.raises(error, match=says(*words.split())):
        merge_backward(**GOOD | changes)
