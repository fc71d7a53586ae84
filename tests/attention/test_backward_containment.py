"""Hidden elements reach no gradient, whatever they hold, and visible ones do. The gradients of a
fully masked row are exactly zero, and the row contributes to no gradient."""

import dataclasses
import itertools

import numpy as np
import pytest

import gradient_reference
import regard
from cases import Case
from element_types import each_in_one_type
from gradient_cases import GradientProblem, build, drawn
from option_cases import MIXES, OPTIONS
from reference import arithmetic, assert_same_bits, lay_out

POISONS = (np.nan, np.inf, -np.inf)
OTHERS = OPTIONS[: -len(MIXES) : 8]


def entry_of(case, dtype, dropout=0.0):
    """Return the batch entry that sees most, and what it sees with all options and without the
    mask."""
    problem = build(case, dtype, dropout).whole()

    def seen(problem):
        options = {k: v for k, v in problem.options.items() if not k.startswith("dropout")}
        bare = {k: v for k, v in options.items() if k != "mask"}
        return (lay_out(*problem.arrays, **o, precision=np.float64).seen for o in (options, bare))

    entries = [problem.entry(index) for index in np.ndindex(problem.batch)]
    entry = max(entries, key=lambda entry: next(seen(entry)).sum())
    return entry, *seen(entry)


def by_key_head(problem, seen):
    """Return which keys are seen by some query head that reads them."""
    rows = len(problem.query) // len(problem.key) * seen.shape[1]
    return seen.reshape(len(problem.key), rows, seen.shape[-1]).any(axis=1)


def assert_same_gradients(actual, wanted):
    for gradient, right in zip(actual, wanted, strict=True):
        assert (gradient is None) == (right is None)
        if right is not None:
            assert_same_bits(gradient, right)


def check_hidden(case, dtype, dropout=0.0):
    problem, seen, elsewhere = entry_of(case, dtype, dropout)
    shown, blind = by_key_head(problem, seen), ~seen.any(axis=-1)
    clean = problem.gradients()
    assert not clean.query[blind].any()
    assert not clean.key[~shown].any()
    assert not clean.value[~shown].any()
    mask = problem.inputs.get("mask")
    if mask is not None:
        assert not clean.mask[~seen].any()
    for poison in POISONS:
        arrays = [x.copy() for x in (*problem.arrays, problem.grad_output, problem.grad_lse)]
        query, key, value, grad_output, grad_lse = arrays
        query[blind] = grad_output[blind] = poison
        key[~shown] = value[~shown] = poison
        if "sinks" not in problem.options:
            grad_lse[blind] = poison  # lse is -inf there, whatever the inputs are
        options = dict(problem.options)
        if mask is not None:
            options["mask"] = np.where(elsewhere, mask, np.nan).astype(mask.dtype)
        spoiled = GradientProblem(query, key, value, options, grad_output, grad_lse)
        assert_same_gradients(spoiled.gradients(), clean)


@each_in_one_type([*OTHERS[::4], *MIXES[::6]], "storage")
def test_what_is_hidden_reaches_no_gradient(case, storage, target):
    """The poison is in keys and values hidden from all heads that read them, in a float mask where
    another rule hides, and in the queries and gradients of fully masked rows."""
    check_hidden(case, storage)


@pytest.mark.slow
@each_in_one_type([*OTHERS, *MIXES], "storage")
def test_what_is_hidden_reaches_no_gradient_in_every_mix(case, storage, target):
    check_hidden(case, storage)
    check_hidden(case, storage, dropout=0.3)


SHAPES = {"query": (4, 40, 12), "key": (2, 205, 12), "value": (2, 205, 20)}


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("sinks", [None, 0.5])
def test_rows_without_keys_beside_rows_with(kind, sinks, storage, target):
    """The lse of a fully masked row is its sink's logit, whose gradient is the gradient of lse."""
    case = Case("blind rows", **SHAPES, sinks=sinks)
    problem = build(case, storage, 0.0)
    seen = np.random.default_rng(0).random((4, 40, 205)) < 0.5
    seen[:, [0, 3, 17, 39]] = False
    mask = seen if kind == "bool" else np.where(seen, 0.25, -np.inf).astype(storage)
    grad_lse = drawn((4, 40), arithmetic(storage), 5)
    options = problem.options | {"mask": mask}
    problem = dataclasses.replace(problem, options=options, grad_lse=grad_lse)
    clean = problem.gradients()
    blind = ~seen.any(axis=-1)
    assert not clean.query[blind].any()
    loud = {name: getattr(problem, name).copy() for name in ("query", "grad_output")}
    for array in loud.values():
        array[blind] = np.nan
    assert_same_gradients(dataclasses.replace(problem, **loud).gradients(), clean)
    only = dataclasses.replace(problem, grad_lse=np.where(blind, grad_lse, 0))
    only = dataclasses.replace(only, grad_output=np.zeros_like(problem.grad_output)).gradients()
    assert not any(gradient.any() for gradient in only[:3])
    if sinks is not None:
        wanted = np.where(blind, grad_lse, 0).astype(np.float64).sum(axis=-1)
        assert np.allclose(only.sinks, wanted, 1e-5, 1e-5)


def test_nan_reaches_a_sink_from_an_output_of_zeros_that_sees_a_key(storage, target):
    """The values are 0 and one row is fully masked, so both kinds of rows have an output of 0."""
    case = Case("values of zero", **SHAPES, sinks=0.5)
    problem = build(case, storage, 0.0)
    seen = np.ones((4, 40, 205), bool)
    seen[2, 7] = False
    problem = dataclasses.replace(
        problem, value=np.zeros_like(problem.value), options=problem.options | {"mask": seen}
    )
    clean = problem.gradients().sinks
    for head, row, is_nan in ((2, 7, False), (1, 7, True)):
        grad_output = problem.grad_output.copy()
        grad_output[head, row, 3] = np.nan
        sinks = dataclasses.replace(problem, grad_output=grad_output).gradients().sinks
        wanted = np.array([is_nan and h == head for h in range(4)])
        assert (np.isnan(sinks) == wanted).all()
        assert_same_bits(sinks[~wanted], clean[~wanted])


PLACES = ("query", "key", "value", "grad_output", "grad_lse", "mask")


def check_nan(case, dtype):
    """Check NaN in one element of each array: NaN appears in the same places as in the oracle, and
    the other bits do not change."""
    problem, seen, _ = entry_of(case, dtype)
    clean = problem.gradients()
    places = np.argwhere(seen)
    if not len(places):
        pytest.skip("nothing is visible")
    h, i, j = places[len(places) // 2]
    kv_h = h // (len(problem.query) // len(problem.key))
    column = -(i % 2)  # the first or the last
    index = {"query": (h, i, column), "key": (kv_h, j, -1), "value": (kv_h, j, column)}
    index |= {"grad_output": (h, i, column), "grad_lse": (h, i), "mask": (h, i, j)}
    for name in PLACES:
        if name == "mask" and name not in problem.inputs:
            continue
        array = (problem.inputs["mask"] if name == "mask" else getattr(problem, name)).copy()
        array[index[name]] = np.nan
        if name == "mask":
            spoiled = dataclasses.replace(problem, options=problem.options | {"mask": array})
        else:
            spoiled = dataclasses.replace(problem, **{name: array})
        arrays = (spoiled.grad_output, *spoiled.arrays)
        want = gradient_reference.backward(*arrays, **spoiled.options, grad_lse=spoiled.grad_lse)
        actual = spoiled.gradients()
        assert np.isnan(actual.query[h, i]).any(), name
        for part in actual._fields:
            gradient, exact, before = (getattr(x, part) for x in (actual, want, clean))
            if gradient is None:
                continue
            nan = np.isnan(exact)
            assert np.array_equal(np.isnan(gradient), nan), (name, part)
            assert_same_bits(gradient[~nan], before[~nan])


@each_in_one_type([MIXES[i] for i in (1, 17, 33, 49)], "storage")
def test_nan_shows_in_gradients_where_it_is_seen(case, storage, target):
    check_nan(case, storage)


@pytest.mark.slow
@each_in_one_type([*OTHERS, *MIXES], "storage", often=2)
def test_nan_shows_in_gradients_of_every_mix(case, storage, target):
    check_nan(case, storage)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 17, 95, 96, 150, 204])
def test_gradients_of_keys_hidden_from_some_rows(where, poison, dtype, target):
    """Rows that share a tile with a row that sees the poison keep every bit, and so do keys that
    only such rows see."""
    problem = build(Case("some rows", **SHAPES), dtype, 0.0)
    mask = np.random.default_rng(where).random((40, 205)) < 0.2
    mask[::3, 110:140] = True
    mask[1::3, 110:140] = mask[2::3, 110:140] = False
    mask[::3, where] = False
    mask[1::3, where] = True
    blind = ~mask[:, where]
    untouched = ~mask[mask[:, where]].any(axis=0)
    assert untouched.sum() >= 29
    problem = dataclasses.replace(problem, options={"mask": mask})
    clean = problem.gradients()
    for role in ("key", "value"):
        spoiled = getattr(problem, role).copy()
        spoiled[:, where] = poison
        actual = dataclasses.replace(problem, **{role: spoiled}).gradients()
        assert_same_bits(actual.query[:, blind], clean.query[:, blind])
        assert_same_bits(actual.key[:, untouched], clean.key[:, untouched])
        assert_same_bits(actual.value[:, untouched], clean.value[:, untouched])
        assert not np.isfinite(actual.query[:, ~blind]).any()
    for role in ("query", "grad_output"):
        spoiled = getattr(problem, role).copy()
        spoiled[:, mask[:, where]] = poison
        actual = dataclasses.replace(problem, **{role: spoiled}).gradients()
        assert_same_bits(actual.query[:, blind], clean.query[:, blind])
        assert_same_bits(actual.key[:, untouched], clean.key[:, untouched])
        assert_same_bits(actual.value[:, untouched], clean.value[:, untouched])
        assert not np.isfinite(actual.key[:, where]).any()


@each_in_one_type(MIXES[2::9], "storage")
def test_other_entries_reach_no_gradient(case, storage, target):
    problem = build(case, storage, 0.3).whole()
    wanted = problem.gradients()
    kept = tuple(n // 2 for n in problem.batch)
    others = np.ones(problem.batch, bool)
    others[kept] = False
    for filling in (np.nan, np.inf, 3e4):
        arrays = [x.copy() for x in (*problem.arrays, problem.grad_output, problem.grad_lse)]
        for array in arrays:
            array[others] = filling
        query, key, value, *grads = arrays
        with np.errstate(all="ignore"):
            actual = GradientProblem(query, key, value, problem.options, *grads).gradients()
        for name in ("query", "key", "value", "mask"):
            if getattr(wanted, name) is not None:
                assert_same_bits(getattr(actual, name)[kept], getattr(wanted, name)[kept])


@pytest.mark.parametrize("position", [0, 1, 16, 95, 96, 204])
def test_causality_hides_the_future_from_gradients(position, dtype, target):
    shapes = (4, 205, 12), (2, 205, 12), (2, 205, 20)
    problem = build(Case("the future", *shapes, is_causal=True), dtype, 0.0)
    clean = problem.gradients()
    loud = {name: getattr(problem, name).copy() for name in ("key", "value")}
    for array, poison in zip(loud.values(), itertools.cycle((np.nan, np.inf))):
        array[:, position:] = poison
    query = dataclasses.replace(problem, **loud).gradients().query
    assert_same_bits(query[:, :position], clean.query[:, :position])
    assert np.isnan(query[:, position:]).all()
    grads = problem.grad_output.copy()
    grads[:, :position] = np.nan
    actual = dataclasses.replace(problem, grad_output=grads).gradients()
    assert_same_bits(actual.query[:, position:], clean.query[:, position:])
    assert_same_bits(actual.key[:, position:], clean.key[:, position:])
    assert_same_bits(actual.value[:, position:], clean.value[:, position:])
    assert np.isnan(actual.value[:, :position]).all()


@pytest.mark.parametrize("constant", [-1e32, -1e28, -3e15, -7e7])
def test_a_row_with_a_large_constant_spoils_no_other(constant, target):
    """The row's lse is rounded by much more than 1, and its gradient of the output is 0."""
    random = np.random.default_rng(0)
    inputs = random.standard_normal((3, 2, 20, 16), dtype=np.float32)
    grad_output = random.standard_normal((2, 20, 16), dtype=np.float32)
    grad_output[:, 7] = 0
    mask = np.zeros((20, 20), np.float32)

    def gradients(bias, dtype):
        arrays = [array.astype(dtype) for array in inputs]
        forward = regard.scaled_dot_product_attention(*arrays, bias, return_lse=True)
        given = grad_output.astype(dtype), *arrays, *forward, bias
        return regard.scaled_dot_product_attention_backward(*given)[:3]

    exact = gradients(mask, np.float64)
    mask[7] = constant
    mine = gradients(mask, np.float32)
    others = np.arange(20) != 7
    assert np.isfinite(mine[0]).all()
    for actual, wanted in zip(mine, exact, strict=True):
        rows = others if actual is mine[0] else slice(None)
        assert np.abs(actual - wanted)[:, rows].max() < 1e-5
