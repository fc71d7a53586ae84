"""Test attention over parts of the keys, merged, against attention over all keys."""

import numpy as np
import pytest

import regard
from element_types import type_named
from layouts import LAYOUTS
from problem import drawn
from reference import assert_same_bits

merge = regard.merge_attention_states
INF, NAN = np.inf, np.nan


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
    outputs = drawn((parts, 2, 40, 6)).astype(dtype)
    lses = (spread * drawn((parts, 2, 40), seed=1)).astype(wide)
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


def several(dtype, parts=5, rows=(3, 4, 11), value_dim=7):
    outputs = drawn((parts, *rows, value_dim), dtype)
    lses = drawn((parts, *rows), dtype, seed=1) * 5
    lses[np.random.default_rng(2).random(lses.shape) < 0.3] = -INF
    outputs[lses == -INF] = 0
    return outputs, lses


def test_an_empty_part_changes_no_bit(dtype, target):
    outputs, lses = several(dtype)
    wanted = merge(outputs, lses)
    for place in range(6):
        more = np.insert(outputs, place, 0, axis=0), np.insert(lses, place, -INF, axis=0)
        assert_same_bits(merge(*more), wanted)


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


def test_results_of_one_part_are_copies(dtype):
    output, lse = drawn((2, 5, 3), dtype), drawn((2, 5), dtype)
    merged = merge([output], [lse])
    assert_same_bits(merged, (output, lse))
    assert not any(np.shares_memory(*pair) for pair in zip(merged, (output, lse), strict=True))


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
    outputs = [drawn(shape, dtype, i) for i, shape in enumerate(states)]
    lses = [drawn(shape, dtype, i + 9) for i, shape in enumerate(sums)]
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
        (["float32", "float32"], ["float32", "float64"], "float32", "float64"),
        (["float16"], ["float64"], "float16", "float64"),
        (["bfloat16", "float16"], ["float32", "bfloat16"], "float32", "float32"),
        (["bfloat16", "float64", "float16"], ["float32"] * 3, "float64", "float64"),
        (["int64"], ["float32"], "float64", "float64"),
        (["float32"], ["int8"], "float32", "float64"),
        ([">f4"], [">f8"], "float32", "float64"),
    ],
)
def test_types(outputs, lses, output, lse):
    states = [drawn((5, 2), seed=i).astype(type_named(name)) for i, name in enumerate(outputs)]
    sums = [drawn((5,), seed=i).astype(type_named(name)) for i, name in enumerate(lses)]
    actual = merge(states, sums)
    assert actual[0].dtype == type_named(output)
    assert actual[1].dtype == type_named(lse)
