"""Under every option, hidden elements change no bit, whatever they hold, and visible ones show."""

import dataclasses
import itertools

import numpy as np
import pytest

import regard
from element_types import each_in_one_type
from option_cases import MIXES, OPTIONS
from reference import assert_same_bits, attention, lay_out

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}


def attend(problem, **options):
    return sdpa(*problem.arrays, **problem.options | options)


def with_full_mask(problem, shape):
    """Return the problem with any float mask writable and different for every score, and this
    mask."""
    mask = problem.options.get("mask")
    if mask is None or mask.dtype == bool:
        return problem, None
    mask = np.broadcast_to(mask, shape).copy()
    return dataclasses.replace(problem, options=problem.options | {"mask": mask}), mask


def visible(problem):
    """Return what is visible, as (heads, q_len, kv_len), with all options and without the mask."""
    options = dict(problem.options)
    seen = lay_out(*problem.arrays, **options, precision=np.float64).seen
    options.pop("mask", None)
    return seen, lay_out(*problem.arrays, **options, precision=np.float64).seen


@each_in_one_type([*OPTIONS[: -len(MIXES) : 8], *MIXES], "storage")
def test_what_is_hidden_may_hold_anything(case, storage, target):
    """The poison is in keys and values hidden from all heads that read them, in a float mask where
    another rule hides, and in fully masked queries."""
    whole = case.build(storage)
    poisons = itertools.cycle((np.nan, np.inf, -np.inf))
    for index, poison in zip(np.ndindex(whole.batch), poisons, strict=False):
        problem = whole.entry(index)
        seen, elsewhere = visible(problem)
        clean = attend(problem, **EVERYTHING)
        rows = len(problem.query) // len(problem.key) * seen.shape[1]
        by_head = seen.reshape(len(problem.key), rows, seen.shape[-1]).any(axis=1)
        query, key, value = (x.copy() for x in problem.arrays)
        query[~seen.any(axis=-1)] = poison
        key[~by_head] = poison
        value[~by_head] = poison
        spoiled = dataclasses.replace(problem, query=query, key=key, value=value)
        spoiled, mask = with_full_mask(spoiled, seen.shape)
        if mask is not None:
            mask[~elsewhere] = np.nan
        assert_same_bits(attend(spoiled, **EVERYTHING), clean)
        assert_same_bits(attend(spoiled, return_lse=True), (clean[0], clean[2]))


@each_in_one_type(MIXES, "storage")
def test_nan_shows_where_it_is_seen(case, storage, target):
    """NaN is in some keys and values, then in one element of a query, a key, a value or a float
    mask. The rows that see it are NaN, and the other rows keep every bit."""
    whole = case.build(storage)
    entries = [whole.entry(index) for index in np.ndindex(whole.batch)]
    problem = max(entries, key=lambda entry: visible(entry)[0].sum())
    seen, _ = visible(problem)
    group = len(problem.query) // len(problem.key)
    places = np.argwhere(seen)
    clean = attend(problem, **EVERYTHING)
    if len(places) == 0:  # with these options, no query sees a key
        assert not clean[0].any()
        return
    h, i, j = places[len(places) // 2]
    kv_h = h // group

    def check(rows, columns=slice(None), **changes):
        """Check for NaN in these rows of the scores, or only in these columns of their output."""
        spoiled = dataclasses.replace(problem, **changes)
        output, weights, lse = attend(spoiled, **EVERYTHING)
        assert_same_bits(attend(spoiled, return_lse=True), (output, lse))
        nan = np.zeros(output.shape, bool)
        nan[rows, columns] = True
        assert nan.any()
        assert np.isnan(output[nan]).all()
        assert_same_bits(output[~nan], clean[0][~nan])
        if columns == slice(None):
            assert np.isnan(lse[rows]).all()
            assert np.isnan(weights[rows][seen[rows]]).all()
            assert not weights[~seen].any()
            rows = ~rows
        assert_same_bits((weights[rows], lse[rows]), (clean[1][rows], clean[2][rows]))

    _, key, value = (x.copy() for x in problem.arrays)
    some = np.isin(np.arange(seen.shape[-1]), (0, j, seen.shape[-1] - 1))
    key[:, some] = value[:, some] = np.nan
    check((seen & some).any(axis=-1), key=key, value=value)

    heads = np.arange(len(seen)) // group == kv_h
    sees_j = seen[..., j] & heads[:, None]
    spoiled = {role: getattr(problem, role).copy() for role in ("query", "key", "value")}
    spoiled["query"][h, i, 0] = spoiled["key"][kv_h, j, -1] = spoiled["value"][kv_h, j, -1] = np.nan
    one = np.zeros(sees_j.shape, bool)
    one[h, i] = True
    check(one, query=spoiled["query"])
    check(sees_j, key=spoiled["key"])
    check(sees_j, -1, value=spoiled["value"])
    masked, mask = with_full_mask(problem, seen.shape)
    if mask is not None:
        mask[h, i, j] = np.nan
        check(one, options=masked.options)


@pytest.mark.parametrize("poison", [np.inf, -np.inf])
@each_in_one_type(MIXES[::4], "dtype")
def test_infinities_make_what_they_mean(case, poison, dtype, target):
    """A score of -inf by value has no weight, and the weight of a score of +inf is undefined. With
    a cap, both scores equal the cap."""
    whole = case.build(dtype)
    problem = whole.entry((0,) * len(whole.batch))
    for name in ("query", "key"):
        array = getattr(problem, name).copy()
        array[:, ::3, 0] = poison
        spoiled = dataclasses.replace(problem, **{name: array})
        want = attention(*spoiled.arrays, **spoiled.options)
        for actual, exact in zip(attend(spoiled, **EVERYTHING), want, strict=True):
            assert np.array_equal(np.isnan(actual), np.isnan(exact))
    value = problem.value.copy()
    value[:, ::3, 1] = poison
    output = attend(dataclasses.replace(problem, value=value))
    seen, _ = visible(problem)
    reached = seen[..., ::3].any(axis=-1)
    assert not np.isfinite(output[reached][:, 1]).any()
    assert np.isfinite(output[~reached]).all()


def test_scores_of_minus_infinity_beside_a_sink(dtype, target):
    """If every visible score is -inf by value, the sink takes all weight. Without a sink, the row
    is NaN."""
    query, key, value = np.ones((2, 9, 1), dtype), np.ones((2, 30, 1), dtype), np.ones((2, 30, 3))
    key[...] = -np.inf
    value = value.astype(dtype)
    sinks = np.array([1.5, -np.inf], dtype)
    output, weights, lse = sdpa(query, key, value, sinks=sinks, **EVERYTHING)
    assert not output[0].any()
    assert not weights[0].any()
    assert np.isclose(lse[0], 1.5, 1.5 * np.finfo(dtype).eps, 0).all()
    assert np.isnan(output[1]).all()
    assert np.isnan(weights[1]).all()
