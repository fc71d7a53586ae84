"""Test attention over parts of the keys, merged, against attention over all keys."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import gradient_reference
import reference
import regard
from cases import LAYOUTS
from drawn_problems import TARGETS, examples, on_target, problems
from element_types import type_named
from gradient_cases import GradientProblem, drawn
from reference import arithmetic, assert_same_bits, half_ulp

sdpa = regard.scaled_dot_product_attention
merge = regard.merge_attention_states
merge_backward = regard.merge_attention_states_backward
INF, NAN = np.inf, np.nan


def normal(shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exactly(outputs, lses):
    logs = [np.asarray(lse).astype(np.longdouble) for lse in lses]
    lse = np.logaddexp.reduce(np.broadcast_arrays(*logs), axis=0)
    shares = (np.exp(log - lse)[..., None] for log in logs)
    return sum(
        s * np.asarray(o).astype(np.longdouble) for s, o in zip(shares, outputs, strict=True)
    ), lse


@pytest.mark.parametrize("spread", [1, 30, 700])
@pytest.mark.parametrize("parts", [1, 2, 3, 17])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_merge_is_the_formula(dtype, parts, spread, target):
    """Shares are off by eps of the difference of two sums in float64, or rounded to float32. Each
    of `parts` products and sums is rounded, and then the output is rounded to its type."""
    dtype = type_named(dtype)
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    outputs = normal((parts, 2, 40, 6)).astype(dtype)
    lses = (spread * normal((parts, 2, 40), seed=1)).astype(wide)
    output, lse = merge(outputs, lses)
    assert output.dtype == dtype
    assert lse.dtype == wide
    exact, exact_lse = exactly(outputs, lses)
    eps = float(np.finfo(wide).eps)
    magnitude = np.abs(outputs.astype(float)).max(axis=0)
    limit = magnitude * (eps * (parts + 3) + np.finfo(float).eps * 2 * np.ptp(lses, axis=0).max())
    if dtype.itemsize == 2:
        limit += np.abs(exact).astype(float) * (2.0**-8 if dtype.name == "bfloat16" else 2.0**-11)
    assert (np.abs(output.astype(np.longdouble) - exact) <= limit).all()
    assert (np.abs(lse - exact_lse) <= eps * (parts + np.abs(exact_lse))).all()


# The outputs and lses of the parts in one row, and the merged output and lse.
ROWS = {
    "one part": ([3.0], [1.5], 3.0, 1.5),
    "one part, signed zeros": ([-0.0], [-0.0], -0.0, -0.0),
    "one empty part": ([0.0], [-INF], 0.0, -INF),
    "all empty": ([0.0, 0.0, 0.0], [-INF, -INF, -INF], 0.0, -INF),
    "empty before": ([0.0, 7.3], [-INF, 2.1], 7.3, 2.1),
    "empty after": ([-0.0, 0.0], [-0.0, -INF], -0.0, -0.0),
    "empty, its output not written": ([NAN, 7.3, INF], [-INF, 2.1, -INF], 7.3, 2.1),
    "two equal": ([1.0, 2.0], [0.0, 0.0], 1.5, np.log(2)),
    "very low": ([1.0, 2.0], [-1e30, -2e30], 1.0, -1e30),
    "all scores -inf": ([NAN, 0.0], [-INF, -INF], NAN, -INF),
    "all scores -inf, seen beside others": ([NAN, 1.0], [-INF, 0.0], 1.0, 0.0),
    "NaN": ([NAN, 1.0], [0.0, 0.0], NAN, np.log(2)),
    "NaN of a vanishing share": ([1.0, NAN], [0.0, -1e4], NAN, 0.0),
    "infinity": ([1.0, INF], [0.0, 0.0], INF, np.log(2)),
    "opposite infinities": ([-INF, INF], [0.0, 0.0], NAN, np.log(2)),
    "NaN as a sum": ([1.0, 2.0], [0.0, NAN], NAN, NAN),
    "NaN as a sum beside nothing": ([1.0, 0.0], [NAN, -INF], NAN, NAN),
    "an infinite sum": ([1.0, 2.0, 0.0], [5.0, INF, -INF], 2.0, INF),
    "an infinite sum, alone": ([2.0], [INF], 2.0, INF),
    "two infinite sums": ([1.0, 2.0, 3.0], [INF, 0.0, INF], NAN, INF),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_special_numbers(name, dtype, target):
    """Special rows must not change the ordinary row next to them."""
    outputs, lses, output, lse = ROWS[name]
    states = np.array([[[o, o], [0.25, -0.5]] for o in outputs], dtype)
    sums = np.array([[x, 0.0] for x in lses], dtype)
    actual, actual_lse = merge(states, sums)
    assert actual.dtype == actual_lse.dtype == dtype
    for row, wanted in [(actual[0], output), (actual_lse[0], lse)]:
        np.testing.assert_array_equal(row, np.full(row.shape, wanted, dtype))
        assert np.isnan(wanted) or (np.signbit(row) == np.signbit(wanted)).all()
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(actual[1], [0.25, -0.5], rtol=4 * eps)
    np.testing.assert_allclose(actual_lse[1], np.log(len(lses)), rtol=eps, atol=eps)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_one_part_comes_back_as_it_is(dtype, target):
    output, lse = normal((2, 5, 3)).astype(type_named(dtype)), normal((2, 5), "float32")
    output[0, 1], lse[0, 1] = 0, -INF
    output[1, 2] = [NAN, INF, -0.0]
    before = output.copy(), lse.copy()
    actual = merge([output], [lse])
    assert_same_bits(actual[0], output)
    assert_same_bits(actual[1], lse.astype("float64" if dtype == "float64" else "float32"))
    for result in actual:
        result[...] = 1
    assert_same_bits((output, lse), before)


def several(dtype, parts=5, rows=(3, 4, 11), value_dim=7):
    outputs = normal((parts, *rows, value_dim), dtype)
    lses = normal((parts, *rows), dtype, seed=1) * 5
    lses[np.random.default_rng(2).random(lses.shape) < 0.3] = -INF
    outputs[lses == -INF] = 0
    return outputs, lses


def assert_near(actual, wanted, outputs, lses, times):
    eps = float(np.finfo(outputs.dtype).eps)
    finite = np.abs(lses[np.isfinite(lses)]).max()
    limits = times * eps * np.abs(outputs).max() * (len(outputs) + 3 + finite)
    for a, w in zip(actual, wanted, strict=True):
        assert a.dtype == w.dtype
        assert reference.error(a, w) <= limits


def test_order_matters_little(dtype):
    outputs, lses = several(dtype)
    wanted = merge(outputs, lses)
    for order in itertools.permutations(range(5)):
        assert_near(merge(outputs[list(order)], lses[list(order)]), wanted, outputs, lses, 2)


def test_grouping_matters_little(dtype):
    """Each merge rounds an lse by eps of itself."""
    outputs, lses = several(dtype)
    wanted = merge(outputs, lses)
    for first, second in [(1, 2), (2, 3), (1, 4), (3, 4)]:
        cuts = itertools.pairwise([0, first, second, 5])
        groups = [merge(outputs[a:b], lses[a:b]) for a, b in cuts]
        grouped = merge(*zip(*groups, strict=True))
        assert_near(grouped, wanted, outputs, lses, 4)
    state = outputs[0], lses[0]
    for output, lse in zip(outputs[1:], lses[1:], strict=True):
        state = merge([state[0], output], [state[1], lse])
    assert_near(state, wanted, outputs, lses, 2 * len(outputs))


def test_an_empty_part_changes_no_bit(dtype, target):
    outputs, lses = several(dtype)
    wanted = merge(outputs, lses)
    for place in range(6):
        more = np.insert(outputs, place, 0, axis=0), np.insert(lses, place, -INF, axis=0)
        assert_same_bits(merge(*more), wanted)


@pytest.mark.parametrize("parts", [2, 9, 40])
def test_a_row_alone_has_the_bits_of_all(parts, dtype, target):
    outputs, lses = several(dtype, parts=parts)
    output, lse = merge(outputs, lses)
    for row in np.ndindex(3, 4, 11):
        index = (slice(None), *(slice(i, i + 1) for i in row))
        alone = merge(outputs[index], lses[index])
        assert_same_bits(alone, (output[index[1:]], lse[index[1:]]))


def test_the_number_of_threads_changes_no_bit(dtype, target):
    """There are enough rows for four threads, and fewer rows in the last task."""
    outputs, lses = several(dtype, rows=(3, 5, 401), value_dim=67)
    results = []
    try:
        for threads in (1, 4):
            regard.set_num_threads(threads)
            results.append(merge(outputs, lses))
    finally:
        regard.set_num_threads(None)
    assert_same_bits(*results)
    few = merge(outputs[:, :, :, 200:203], lses[:, :, :, 200:203])
    assert_same_bits(few, tuple(part[:, :, 200:203] for part in results[0]))


@pytest.mark.parametrize("value_dim", [7, 300])  # rows are merged 256 elements at a time
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout, value_dim, dtype, target):
    outputs, lses = several(dtype, parts=2, value_dim=value_dim)
    wanted = merge(outputs, lses)
    laid = [LAYOUTS[layout](part) for part in outputs], [LAYOUTS[layout](part) for part in lses]
    before = [[part.copy() for part in parts] for parts in laid]
    assert_same_bits(merge(*laid), wanted)
    for parts, copies in zip(laid, before, strict=True):
        for part, copy in zip(parts, copies, strict=True):
            assert_same_bits(part, copy)


def test_sequences_of_any_kind(dtype):
    outputs, lses = several(dtype)
    wanted = merge(outputs, lses)
    assert_same_bits(merge(list(outputs), tuple(lses)), wanted)
    assert_same_bits(merge((part for part in outputs), iter(lses)), wanted)


@pytest.mark.parametrize(
    ("states", "sums"),
    [
        ([(4, 3, 5, 2), (5, 2)], [(4, 3, 5), (5,)]),
        ([(3, 5, 2), (4, 1, 5, 2)], [(3, 5), (4, 1, 5)]),
        ([(5, 2), (5, 2)], [(5,), (4, 3, 5)]),
        ([(3, 5, 2), (3, 5, 2)], [(3, 1), (1,)]),
        ([(1, 1, 2), (3, 5, 2), (4, 1, 5, 2)], [(5,), (3, 1), (4, 1, 1)]),
        ([(0, 5, 2), (5, 2)], [(5,), (5,)]),
        ([(3, 0, 2)], [(3, 0)]),
        ([(3, 5, 0), (5, 0)], [(3, 5), (5,)]),
    ],
)
def test_parts_broadcast(states, sums, dtype, target):
    outputs = [normal(shape, dtype, i) for i, shape in enumerate(states)]
    lses = [normal(shape, dtype, i + 9) for i, shape in enumerate(sums)]
    rows = np.broadcast_shapes(*(shape[:-1] for shape in states), *sums)
    full = [np.broadcast_to(o, (*rows, o.shape[-1])).copy() for o in outputs]
    actual = merge(outputs, lses)
    assert actual[0].shape == (*rows, states[0][-1])
    assert actual[1].shape == rows
    assert_same_bits(actual, merge(full, [np.broadcast_to(x, rows).copy() for x in lses]))


@pytest.mark.parametrize(
    ("outputs", "lses", "output", "lse"),
    [
        (["float32"], ["float32"], "float32", "float32"),
        (["float32", "float64"], ["float32", "float32"], "float64", "float64"),
        (["float32", "float32"], ["float32", "float64"], "float32", "float64"),
        (["float16", "float16"], ["float32", "float16"], "float16", "float32"),
        (["float16", "float32"], ["float32", "float32"], "float32", "float32"),
        (["float16"], ["float64"], "float16", "float64"),
        (["bfloat16", "bfloat16"], ["float32", "float32"], "bfloat16", "float32"),
        (["bfloat16", "float16"], ["float32", "bfloat16"], "float32", "float32"),
        (["bfloat16", "float64", "float16"], ["float32"] * 3, "float64", "float64"),
        (["int64"], ["float32"], "float64", "float64"),
        (["float32"], ["int8"], "float32", "float64"),
        ([">f4"], [">f8"], "float32", "float64"),
    ],
)
def test_types(outputs, lses, output, lse):
    states = [normal((5, 2), seed=i).astype(type_named(name)) for i, name in enumerate(outputs)]
    sums = [normal((5,), seed=i).astype(type_named(name)) for i, name in enumerate(lses)]
    actual = merge(states, sums)
    assert actual[0].dtype == type_named(output)
    assert actual[1].dtype == type_named(lse)


def test_lists():
    output, lse = merge([[[1, 2]], [[3, 4]]], [[0], [0]])
    np.testing.assert_allclose(output, [[2.0, 3.0]], rtol=4 * np.finfo(float).eps)
    np.testing.assert_allclose(lse, [np.log(2)], rtol=4 * np.finfo(float).eps)


OUTPUT, LSE = np.zeros((3, 5, 2)), np.zeros((3, 5))


# Gradients


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


def test_one_array_with_the_parts_along_its_first_axis(dtype):
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(2, 40)] * 3)
    merged = merge(outputs, lses)
    wanted = merge_backward(grad_output, outputs, lses, *merged, grad_lse=grad_lse)
    stacked = np.stack(outputs), np.stack(lses)
    actual = merge_backward(grad_output, *stacked, *merged, grad_lse=grad_lse)
    for mine, right in zip(actual, wanted, strict=True):
        assert_same_bits(tuple(mine), tuple(right))


def test_a_part_that_saw_nothing_has_no_gradients(dtype):
    """This holds for each row, whatever its output holds and whatever the other gradients are."""
    outputs, lses, grad_output, grad_lse = states(dtype.name, [(3, 20)] * 3)
    lses[1][:, ::2] = -INF
    lses[2][0] = -INF
    clean = merge_backward(grad_output, outputs, lses, *merge(outputs, lses), grad_lse=grad_lse)
    check_gradients(outputs, lses, grad_output, grad_lse)
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


# Parts of the keys


def halves(problem, split):
    """Return the keys before and from `split` on as two problems; the first has the sinks."""

    def select(mask):
        return mask[..., split:] if mask.ndim and mask.shape[-1] > 1 else mask

    first, options = problem.keys(split), problem.with_masks(select)
    options["query_offset"] = np.asarray(options.get("query_offset", 0)) - split
    for name in ("key_lengths", "left_padding"):
        if options.get(name) is not None:
            options[name] = np.maximum(np.asarray(options[name]) - split, 0)
    options.pop("sinks", None)
    arrays = problem.query, problem.key[..., split:, :], problem.value[..., split:, :]
    return (first.arrays, first.options), (arrays, options)


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
        for arrays, options in parts:
            output, lse = sdpa(*arrays, **options, return_lse=True)
            outputs.append(output)
            lses.append(lse)
        merged = merge(outputs, lses)
        grads = merge_backward(
            problem.grad_output, outputs, lses, *merged, grad_lse=problem.grad_lse
        )
        for (arrays, options), *state, own, own_lse in zip(
            parts, outputs, lses, *grads, strict=True
        ):
            part = GradientProblem(*arrays, options, own, own_lse)
            gradients.append(part.gradients(state, with_respect_to=("query", "key", "value")))
    whole = reference.expected(*problem.arrays, **problem.options)
    limits = [reference.expected(*arrays, **options).limit for arrays, options in parts]
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
