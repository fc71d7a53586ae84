"""Test the gradients of gradients against the oracle, and against derivatives of the gradients."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import gradient_reference
import regard
from cases import LAYOUTS, Case
from element_types import each_in_one_type
from gradient_cases import FEW, MORE, OTHERS, assert_within, build, drawn, judge
from messages import says
from option_cases import MIXES
from reference import assert_same_bits, lay_out, result_type

double_backward = regard.scaled_dot_product_attention_double_backward
ROLES = ("query", "key", "value")
FIELDS = ("grad_output", *ROLES)
# Each of these cases forms every score once more in float64 or float32, so there are a third as
# many.
FEW, OTHERS = FEW[::3], OTHERS[::12]


def cotangents_of(problem, seed=3):
    return tuple(drawn(x.shape, x.dtype, seed + i) for i, x in enumerate(problem.arrays))


def doubled(problem, cotangents, state=None, **extra):
    state = problem.attend() if state is None else state
    options = problem.options | {"grad_lse": problem.grad_lse} | extra
    return double_backward(*cotangents, problem.grad_output, *problem.arrays, *state, **options)


def judged(problem, cotangents):
    arrays = (*cotangents, problem.grad_output, *problem.arrays)
    function = gradient_reference.double_backward
    return judge(function, problem, *arrays, grad_lse=problem.grad_lse)


@functools.lru_cache(maxsize=8)
def solved(case, dtype):
    """Return a problem, its cotangents and the oracle's result, computed once for all targets."""
    problem = build(case, dtype)
    cotangents = cotangents_of(problem)
    return problem, cotangents, judged(problem, cotangents)


def check(problem, cotangents, want, **extra):
    actual = doubled(problem, cotangents, **extra)
    assert actual._fields == FIELDS
    for name, part in actual._asdict().items():
        assert_within(getattr(want, name), part, getattr(problem, name).dtype, name)


@each_in_one_type(FEW, "storage")
def test_oracle_of_double_gradients(case, storage, target):
    check(*solved(case, storage))


@pytest.mark.slow
@each_in_one_type(OTHERS, "storage", often=2)
def test_oracle_of_double_gradients_in_the_other_cases(case, storage, target):
    check(*solved(case, storage), threads=2)


@each_in_one_type(MIXES[::36], "storage")
def test_no_cotangent_is_one_of_zeros(case, storage, target):
    problem, cotangents, _ = solved(case, storage)
    for given in itertools.product((True, False), repeat=3):
        some = [c if is_given else None for c, is_given in zip(cotangents, given, strict=True)]
        check(problem, some, judged(problem, some))
    nothing = doubled(problem, (None, None, None))
    assert not any(gradient.any() for gradient in nothing)


@each_in_one_type([*MIXES[::12], *MORE[:10:3]], "dtype")
def test_double_gradients_and_tangents_agree(case, dtype, target):
    """The gradient of G is the derivative of the output along the cotangents, within the same
    limits."""
    problem, cotangents, want = solved(case, dtype)
    options = problem.options
    _, of_output = regard.scaled_dot_product_attention_jvp(*problem.arrays, *cotangents, **options)
    actual = doubled(problem, cotangents).grad_output
    assert np.abs(actual - of_output).max(initial=0) <= 2 * want.grad_output.limit


@each_in_one_type([*MIXES[::12], *MORE[:10:3]], "dtype")
def test_products_with_double_gradients_agree(case, dtype, target):
    """<cotangents, gradients> is linear in G, so it equals its gradient times G, except for the
    terms of grad_lse."""
    problem, cotangents, want = solved(case, dtype)
    problem = dataclasses.replace(problem, grad_lse=np.zeros_like(problem.grad_lse))
    wide = np.longdouble
    limits, left, allowed = problem.expected(), 0, 0
    for name, cotangent, gradient in zip(ROLES, cotangents, problem.gradients(), strict=False):
        left += (cotangent.astype(wide) * gradient).sum()
        allowed += getattr(limits, name).limit * np.abs(cotangent.astype(wide)).sum()
    right = (doubled(problem, cotangents).grad_output.astype(wide) * problem.grad_output).sum()
    allowed += want.grad_output.limit * np.abs(problem.grad_output.astype(wide)).sum()
    assert abs(left - right) <= allowed


@each_in_one_type(MIXES[::12], "storage")
def test_double_gradients_for_any_number_of_threads(case, storage, target, layer):
    problem = build(case, storage)
    cotangents, state = cotangents_of(problem), problem.attend()
    one, *others = (doubled(problem, cotangents, state, threads=n) for n in (1, 2, 3, 5))
    for other in others:
        assert_same_bits(tuple(other), tuple(one))


LYING = Case(
    *("lying", (2, 4, 37, 19), (2, 2, 101, 19), (2, 2, 101, 23)),
    float_mask=(37, 101),
    is_causal=True,
    query_offset=60,
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_double_gradients_elsewhere(layout, dtype, target):
    """With all arrays in another layout, results are within the limits and have the shape and type
    of the inputs."""
    problem, cotangents, want = solved(LYING, dtype)
    lay, state = LAYOUTS[layout], problem.attend()
    moved = {name: lay(getattr(problem, name)) for name in (*FIELDS, "grad_lse")}
    moved = dataclasses.replace(problem, **moved)
    actual = doubled(moved, tuple(map(lay, cotangents)), tuple(map(lay, state)))
    for name, part in actual._asdict().items():
        assert_within(getattr(want, name), part, dtype, name)


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_double_gradients_of_empty_arrays_are_zero(lengths, batch, dtype, target):
    q_len, kv_len = lengths
    shapes = (*batch, 4, q_len, 5), (*batch, 2, kv_len, 5), (*batch, 2, kv_len, 3)
    problem = build(Case("empty", *shapes, sinks=1.0), dtype, 0.0)
    for name, gradient in doubled(problem, cotangents_of(problem))._asdict().items():
        assert_same_bits(np.abs(gradient), np.zeros_like(getattr(problem, name)))


def test_double_gradients_of_arrays_in_several_types(target):
    types = [np.dtype(name) for name in ("float32", "float64", "float16")]
    case = Case("types", (2, 4, 9, 8), (2, 2, 21, 8), (2, 2, 21, 6), sinks=0.5)
    problem = build(case, np.dtype(np.float32), 0.0)
    for chosen in itertools.permutations(types):
        arrays = [x.astype(t) for x, t in zip(problem.arrays, chosen, strict=True)]
        mixed = dataclasses.replace(problem, **dict(zip(ROLES, arrays, strict=True)))
        assert result_type(*mixed.arrays) == np.float64
        cotangents = cotangents_of(mixed)
        check(mixed, cotangents, judged(mixed, cotangents))


def check_contained(case, dtype):
    whole = build(case, dtype, 0.0).whole()
    for index, poison in zip(np.ndindex(whole.batch), itertools.cycle((np.nan, np.inf))):
        problem = whole.entry(index)
        seen = lay_out(*problem.arrays, **problem.options, precision=np.float64).seen
        rows = len(problem.query) // len(problem.key) * seen.shape[1]
        shown = seen.reshape(len(problem.key), rows, seen.shape[-1]).any(axis=1)
        blind = ~seen.any(axis=-1)
        cotangents = cotangents_of(problem)
        clean = doubled(problem, cotangents)
        for gradient, hidden in zip(clean, (blind, blind, ~shown, ~shown), strict=True):
            assert not gradient[hidden].any()
        loud = {name: getattr(problem, name).copy() for name in FIELDS}
        for array, hidden in zip(loud.values(), (blind, blind, ~shown, ~shown), strict=True):
            array[hidden] = poison
        spoiled = [c.copy() for c in cotangents]
        for array, hidden in zip(spoiled, (blind, ~shown, ~shown), strict=True):
            array[hidden] = poison
        actual = doubled(dataclasses.replace(problem, **loud), spoiled)
        want = judged(problem, cotangents)
        for name, part in actual._asdict().items():
            assert_within(getattr(want, name), part, dtype, name)


@each_in_one_type(MIXES[1::36], "single_or_half")
def test_what_is_hidden_reaches_no_double_gradient(case, single_or_half, target):
    check_contained(case, single_or_half)


@pytest.mark.slow
@each_in_one_type(MIXES, "storage", often=3)
def test_what_is_hidden_reaches_no_double_gradient_in_every_mix(case, storage, target):
    check_contained(case, storage)


@each_in_one_type([MIXES[i] for i in (1, 17, 33)], "dtype")
def test_nan_shows_in_double_gradients_where_it_is_seen(case, dtype, target):
    whole = build(case, dtype, 0.0).whole()
    problem = whole.entry((0,) * len(whole.batch))
    seen = lay_out(*problem.arrays, **problem.options, precision=np.float64).seen
    places = np.argwhere(seen)
    h, i, j = places[len(places) // 2]
    kv_h = h // (len(problem.query) // len(problem.key))
    index = (
        (h, i, 0),
        (kv_h, j, -1),
        (kv_h, j, 1),
        (h, i, 0),
        (h, i, 0),
        (kv_h, j, -1),
        (kv_h, j, 1),
    )
    cotangents = cotangents_of(problem)
    for which in range(7):
        arrays = [x.copy() for x in (*cotangents, problem.grad_output, *problem.arrays)]
        arrays[which][index[which]] = np.nan
        options = problem.options | {"grad_lse": problem.grad_lse}
        want = gradient_reference.double_backward(*arrays, **options)
        changed = dict(zip(FIELDS, arrays[3:], strict=True))
        actual = doubled(dataclasses.replace(problem, **changed), arrays[:3])
        for name, exact, part in zip(FIELDS, want, actual, strict=True):
            assert np.array_equal(np.isnan(part), np.isnan(exact)), (which, name)
        assert any(np.isnan(part).any() for part in actual)


GOOD = {
    "grad_grad_query": drawn((2, 14, 5, 64), np.float32),
    "grad_grad_key": drawn((2, 7, 11, 64), np.float32),
    "grad_grad_value": drawn((2, 7, 11, 32), np.float32),
    "grad_output": drawn((2, 14, 5, 32), np.float32),
    "query": drawn((2, 14, 5, 64), np.float32),
    "key": drawn((2, 7, 11, 64), np.float32),
    "value": drawn((2, 7, 11, 32), np.float32),
}
GOOD["output"], GOOD["lse"] = regard.scaled_dot_product_attention(
    *(GOOD[name] for name in ROLES), return_lse=True
)
ERRORS = {
    "query-shape": (
        {"grad_grad_query": np.zeros((2, 14, 5, 63))},
        ValueError,
        "grad_grad_query 63",
    ),
    "query-rank": ({"grad_grad_query": np.zeros((14, 5, 64))}, ValueError, "grad_grad_query"),
    "key-heads": ({"grad_grad_key": np.zeros((2, 14, 11, 64))}, ValueError, "grad_grad_key 14 7"),
    "value-shape": (
        {"grad_grad_value": np.zeros((2, 7, 11, 64))},
        ValueError,
        "grad_grad_value 64",
    ),
    "key-complex": (
        {"grad_grad_key": np.zeros((2, 7, 11, 64), complex)},
        TypeError,
        "grad_grad_key",
    ),
    "value-text": ({"grad_grad_value": "ones"}, TypeError, "grad_grad_value"),
    "grad-output": (
        {"grad_output": np.zeros((2, 14, 5, 31), "f4")},
        ValueError,
        "grad_output 31 32",
    ),
    "output": ({"output": np.zeros((2, 14, 5, 31), "f4")}, ValueError, "output 31 32"),
    "lse": ({"lse": np.zeros((2, 14, 6), "f4")}, ValueError, "lse 6 5"),
    "grad-lse": ({"grad_lse": np.zeros((2, 14, 6), "f4")}, ValueError, "grad_lse 6 5"),
    "dropout": ({"dropout_p": 1.0, "dropout_seed": 0}, ValueError, "dropout_p 1"),
    "no-seed": ({"dropout_p": 0.5}, TypeError, "dropout_p dropout_seed"),
    "bias": ({"bias": np.zeros((5, 11))}, TypeError, "bias mask"),
    "mask": ({"mask": np.zeros((5, 12))}, ValueError, "mask 12 11"),
    "no-such-option": ({"no_such_option": 1}, TypeError, "no_such_option"),
    "threads": ({"threads": 0}, ValueError, "threads 0"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name, silence):
    changes, error, words = ERRORS[name]
    with pytest.raises(error, match=says(*words.split())):
        double_backward(**GOOD | changes)


def test_no_heads():
    query, key, lse = np.ones((0, 3, 4)), np.ones((2, 3, 4)), np.ones((0, 3))
    gradients = regard.scaled_dot_product_attention_double_backward(
        query, key, key, query, query, key, key, query, lse
    )
    assert gradients.query.shape == query.shape
    assert not gradients.key.any()
