"""Test attention and its derivative along tangents, against the oracle and against the
gradients."""

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
from reference import arithmetic, assert_same_bits, lay_out

sdpa = regard.scaled_dot_product_attention
sdpa_jvp = regard.scaled_dot_product_attention_jvp
ROLES = ("query", "key", "value")
THREADS = (1, 2, 3, 5)


def tangents_of(problem, seed=3):
    return tuple(drawn(x.shape, x.dtype, seed + i) for i, x in enumerate(problem.arrays))


def along(problem, tangents, **extra):
    """Return the output, its tangent, lse and its tangent."""
    options = problem.options | {"return_lse": True} | extra
    return sdpa_jvp(*problem.arrays, *tangents, **options)


@functools.lru_cache(maxsize=8)
def solved(case, dtype):
    """Return a problem, its tangents and the oracle's result, computed once for all targets."""
    problem = build(case, dtype)
    tangents = tangents_of(problem)
    return problem, tangents, judge(gradient_reference.jvp, problem, *problem.arrays, *tangents)


def check(case, dtype, threads):
    problem, tangents, want = solved(case, dtype)
    actual = along(problem, tangents, threads=threads)
    assert type(actual) is tuple
    for name, judged, part in zip(want._fields, want, actual, strict=True):
        is_lse = name.endswith("lse")
        assert_within(judged, part, arithmetic(dtype) if is_lse else dtype, name)
    pair = along(problem, tangents, return_lse=False)
    assert type(pair) is tuple
    assert_same_bits(pair, actual[:2])


@each_in_one_type(FEW, "storage")
def test_oracle_of_tangents(case, storage, target):
    check(case, storage, threads=None)


@pytest.mark.slow
@each_in_one_type(OTHERS[::4], "storage", often=2)
def test_oracle_of_tangents_in_the_other_cases(case, storage, target):
    check(case, storage, threads=2)


@each_in_one_type([*MIXES[::8], *MORE[:10:3]], "dtype")
def test_tangents_and_gradients_agree(case, dtype, target):
    """<tangent of the output, G> + <tangent of lse, grad_lse> equals <tangents, gradients>, within
    the limits of each."""
    problem, tangents, want = solved(case, dtype)
    wide = np.longdouble
    _, output, _, lse = (x.astype(wide) for x in along(problem, tangents))
    left = (output * problem.grad_output).sum() + (lse * problem.grad_lse).sum()
    allowed = want.tangent_output.limit * np.abs(problem.grad_output.astype(wide)).sum()
    allowed += want.tangent_lse.limit * np.abs(problem.grad_lse.astype(wide)).sum()
    limits, right = problem.expected(), 0
    for name, tangent, gradient in zip(ROLES, tangents, problem.gradients(), strict=False):
        right += (tangent.astype(wide) * gradient).sum()
        allowed += getattr(limits, name).limit * np.abs(tangent.astype(wide)).sum()
    assert abs(left - right) <= allowed


@each_in_one_type(MIXES[::24], "storage")
def test_no_tangent_is_one_of_zeros(case, storage, target):
    problem, tangents, _ = solved(case, storage)
    for given in itertools.product((True, False), repeat=3):
        some = [t if is_given else None for t, is_given in zip(tangents, given, strict=True)]
        zeros = [t if is_given else 0 * t for t, is_given in zip(tangents, given, strict=True)]
        actual, wanted = along(problem, some), along(problem, zeros)
        want = judge(gradient_reference.jvp, problem, *problem.arrays, *zeros)
        for name, judged, part, like in zip(want._fields, want, actual, wanted, strict=True):
            assert_within(judged, part, like.dtype, name)
            assert_within(judged, like, like.dtype, name)


# Bit equality


@each_in_one_type([*MIXES[::8], *MORE[-5:]], "storage")
def test_tangents_for_any_number_of_threads(case, storage, target, layer):
    problem = build(case, storage)
    tangents = tangents_of(problem)
    one, *others = (along(problem, tangents, threads=n) for n in THREADS)
    for other in others:
        assert_same_bits(other, one)


@each_in_one_type(MIXES[::9], "storage")
def test_tangents_of_entries_and_rows_alone(case, storage, target):
    problem = build(case, storage, 0.0).whole()
    tangents = tangents_of(problem)
    wanted = along(problem, tangents)
    for index in np.ndindex(problem.batch):
        alone = along(problem.entry(index), [t[index] for t in tangents])
        assert_same_bits(alone, tuple(x[index] for x in wanted))
    for start in range(0, problem.query.shape[-2], 7):
        rows = slice(start, start + 7)
        alone = along(problem.rows(start, start + 7), (tangents[0][..., rows, :], *tangents[1:]))
        output, of_output, lse, of_lse = wanted
        assert_same_bits(alone[:2], (output[..., rows, :], of_output[..., rows, :]))
        assert_same_bits(alone[2:], (lse[..., rows], of_lse[..., rows]))


SHAPES = (2, 4, 37, 19), (2, 2, 101, 19), (2, 2, 101, 23)
LYING = Case("lying", *SHAPES, float_mask=(37, 101), is_causal=True, query_offset=60)


@each_in_one_type(LAYOUTS, "storage")
def test_tangents_elsewhere(case, storage, target):
    """First one tangent after another has another layout, then all arrays have it."""
    problem = build(LYING, storage, 0.3)
    lay, tangents = LAYOUTS[case], tangents_of(problem)
    wanted = along(problem, tangents)
    for i in range(3):
        moved = [lay(t) if i == j else t for j, t in enumerate(tangents)]
        assert_same_bits(along(problem, moved), wanted)
    moved = dataclasses.replace(problem, **{r: lay(getattr(problem, r)) for r in ROLES})
    assert_same_bits(along(moved, map(lay, tangents), threads=3), wanted)


def test_tangents_of_lists(target):
    problem = build(Case("lists", (3, 4), (5, 4), (5, 2)), np.dtype(np.float64), 0.0)
    tangents = tangents_of(problem)
    arrays = [x.tolist() for x in (*problem.arrays, *tangents)]
    assert_same_bits(sdpa_jvp(*arrays), sdpa_jvp(*problem.arrays, *tangents))


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,), (0,)], ids=str)
def test_tangents_of_empty_arrays(lengths, batch, dtype, target):
    q_len, kv_len = lengths
    shapes = (*batch, 4, q_len, 5), (*batch, 2, kv_len, 5), (*batch, 2, kv_len, 3)
    problem = build(Case("empty", *shapes, sinks=1.0), dtype, 0.0)
    output, of_output, lse, of_lse = along(problem, tangents_of(problem))
    assert_same_bits(output, np.zeros((*batch, 4, q_len, 3), dtype))
    assert_same_bits(np.abs(of_output), np.zeros((*batch, 4, q_len, 3), dtype))
    assert_same_bits(np.abs(of_lse), np.zeros((*batch, 4, q_len), dtype))
    assert np.allclose(lse, problem.options["sinks"][:, None], 1e-6)


# Containment


def check_contained(case, dtype):
    whole = build(case, dtype, 0.0).whole()
    for index, poison in zip(np.ndindex(whole.batch), itertools.cycle((np.nan, np.inf))):
        problem = whole.entry(index)
        seen = lay_out(*problem.arrays, **problem.options, precision=np.float64).seen
        rows = len(problem.query) // len(problem.key) * seen.shape[1]
        shown = seen.reshape(len(problem.key), rows, seen.shape[-1]).any(axis=1)
        tangents = tangents_of(problem)
        clean = along(problem, tangents)
        blind = ~seen.any(axis=-1)
        assert not clean[1][blind].any()
        assert not clean[3][blind].any()
        arrays = [x.copy() for x in (*problem.arrays, *tangents)]
        for array, hidden in zip(arrays, (blind, ~shown, ~shown) * 2, strict=True):
            array[hidden] = poison
        changed = dict(zip(ROLES, arrays, strict=False))
        spoiled = dataclasses.replace(problem, **changed)
        assert_same_bits(along(spoiled, arrays[3:]), clean)


@each_in_one_type(MIXES[1::9], "storage")
def test_what_is_hidden_reaches_no_tangent(case, storage, target):
    check_contained(case, storage)


@pytest.mark.slow
@each_in_one_type(MIXES, "storage")
def test_what_is_hidden_reaches_no_tangent_in_every_mix(case, storage, target):
    check_contained(case, storage)


@each_in_one_type([MIXES[i] for i in (1, 17, 33, 49)], "storage")
def test_nan_shows_in_tangents_where_it_is_seen(case, storage, target):
    """NaN is in one element of each array: it appears where the oracle has it, and the other bits
    do not change."""
    whole = build(case, storage, 0.0).whole()
    problem = whole.entry((0,) * len(whole.batch))
    seen = lay_out(*problem.arrays, **problem.options, precision=np.float64).seen
    places = np.argwhere(seen)
    h, i, j = places[len(places) // 2]
    kv_h = h // (len(problem.query) // len(problem.key))
    index = ((h, i, 0), (kv_h, j, -1), (kv_h, j, 1)) * 2
    tangents = tangents_of(problem)
    clean = along(problem, tangents)
    for which in range(6):
        arrays = [x.copy() for x in (*problem.arrays, *tangents)]
        arrays[which][index[which]] = np.nan
        want = gradient_reference.jvp(*arrays, **problem.options)
        actual = sdpa_jvp(*arrays, **problem.options, return_lse=True)
        for name, exact, part, before in zip(want._fields, want, actual, clean, strict=True):
            nan = np.isnan(exact)
            assert np.array_equal(np.isnan(part), nan), (which, name)
            assert_same_bits(part[~nan], before[~nan])
        assert np.isnan(actual[1][h, i]).any()


# Invalid arguments

ERRORS = {
    "query-shape": ({"tangent_query": np.zeros((2, 14, 5, 63))}, ValueError, "tangent_query 63 64"),
    "query-rank": ({"tangent_query": np.zeros((14, 5, 64))}, ValueError, "tangent_query 14 5 64 2"),
    "key-shape": ({"tangent_key": np.zeros((2, 14, 11, 64))}, ValueError, "tangent_key 14 7"),
    "value-shape": ({"tangent_value": np.zeros((2, 7, 11, 64))}, ValueError, "tangent_value 64 32"),
    "key-complex": ({"tangent_key": np.zeros((2, 7, 11, 64), complex)}, TypeError, "tangent_key"),
    "value-text": ({"tangent_value": "ones"}, TypeError, "tangent_value"),
    "dropout": ({"dropout_p": 1.0, "dropout_seed": 0}, ValueError, "dropout_p 1"),
    "no-seed": ({"dropout_p": 0.5}, TypeError, "dropout_p dropout_seed"),
    "weights": ({"return_weights": True}, TypeError, "return_weights"),
    "bias": ({"bias": np.zeros((5, 11))}, TypeError, "bias mask"),
    "mask": ({"mask": np.zeros((5, 12))}, ValueError, "mask 12 11"),
    "heads": ({"query": np.zeros((2, 16, 5, 64))}, ValueError, "query key 16 7"),
    "lse-flag": ({"return_lse": 1}, TypeError, "return_lse"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name, silence):
    changes, error, words = ERRORS[name]
    arrays = {
        "query": drawn((2, 14, 5, 64), np.float64),
        "key": drawn((2, 7, 11, 64), np.float64),
        "value": drawn((2, 7, 11, 32), np.float64),
    }
    arrays |= {f"tangent_{name}": array for name, array in arrays.items()}
    with pytest.raises(error, match=says(*words.split())):
        sdpa_jvp(**arrays | changes)
