"""Under every option: what is hidden changes no bit, whatever it holds, and what is seen shows."""

import dataclasses

import numpy as np
import pytest

import regard
from option_cases import MIXES, OPTIONS
from reference import arithmetic, assert_same_bits, attention, lay_out

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}


def attend(problem, **options):
    return sdpa(*problem.arrays, **problem.options | options)


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def with_full_mask(problem, shape):
    """A float mask, if there is one, that may be written to and differs for every score."""
    mask = problem.options.get("mask")
    if mask is None or mask.dtype == bool:
        return problem, None
    mask = np.broadcast_to(mask, shape).copy()
    return dataclasses.replace(problem, options=problem.options | {"mask": mask}), mask


def visible(problem):
    """(heads, q_len, kv_len), and the same where the mask has no say."""
    options = dict(problem.options)
    seen = lay_out(*problem.arrays, **options, precision=np.float64).seen
    options.pop("mask", None)
    return seen, lay_out(*problem.arrays, **options, precision=np.float64).seen


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@named([*OPTIONS[::4], *MIXES])
def test_what_is_hidden_may_hold_anything(case, poison, storage, target):
    """Keys and values hidden from all heads that read them, a float mask where another rule hides,
    and queries that see nothing."""
    whole = case.build(storage)
    for index in np.ndindex(whole.batch):
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
            mask[~elsewhere] = poison
        assert_same_bits(attend(spoiled, **EVERYTHING), clean)
        assert_same_bits(attend(spoiled, return_lse=True), (clean[0], clean[2]))


@named(MIXES)
def test_keys_hidden_from_some_rows_only(case, storage, target):
    """Rows that share a tile with one that sees the poison keep every bit."""
    whole = case.build(storage)
    problem = whole.entry((0,) * len(whole.batch))
    seen, _ = visible(problem)
    clean = attend(problem, return_lse=True)
    _, key, value = (x.copy() for x in problem.arrays)
    poisoned = np.zeros(seen.shape[-1], bool)
    poisoned[[0, len(poisoned) // 2, -1]] = True
    key[:, poisoned] = value[:, poisoned] = np.nan
    spoiled = dataclasses.replace(problem, key=key, value=value)
    output, lse = attend(spoiled, return_lse=True)
    sees = (seen & poisoned).any(axis=-1)
    assert_same_bits(output[~sees], clean[0][~sees])
    assert_same_bits(lse[~sees], clean[1][~sees])
    assert np.isnan(output[sees]).all()
    assert np.isnan(lse[sees]).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@named(MIXES)
def test_what_is_seen_shows(case, poison, storage, target):
    """One element of a query, a key, a value and a float mask that a row sees: NaN exactly where
    the formula has it, and the bits of before in everything that it does not reach."""
    whole = case.build(storage)
    entries = [whole.entry(index) for index in np.ndindex(whole.batch)]
    problem = max(entries, key=lambda entry: visible(entry)[0].sum())
    seen, _ = visible(problem)
    places = np.argwhere(seen)
    h, i, j = places[len(places) // 2]
    kv_h = h // (len(problem.query) // len(problem.key))
    clean = attend(problem, **EVERYTHING)
    for role, place in (("query", (h, i, 0)), ("key", (kv_h, j, 0)), ("value", (kv_h, j, -1))):
        array = getattr(problem, role).copy()
        array[place] = poison
        check_reach(dataclasses.replace(problem, **{role: array}), clean, poison, role)
    spoiled, mask = with_full_mask(problem, seen.shape)
    if mask is not None and poison != -np.inf:
        mask[h, i, j] = poison
        check_reach(spoiled, clean, poison, "mask")


def check_reach(spoiled, clean, poison, role):
    want = attention(*spoiled.arrays, **spoiled.options)
    output, weights, lse = attend(spoiled, **EVERYTHING)
    assert_same_bits(attend(spoiled, return_lse=True), (output, lse))
    if role == "value":
        # Whether an infinity becomes NaN depends on whether float32 rounds its weight to 0.
        reached = ~np.isfinite(want.output)
        assert reached.any()
        assert not np.isfinite(output[reached]).any()
        assert_same_bits((weights, lse), clean[1:])
        assert_same_bits(output[~reached], clean[0][~reached])
        return
    for actual, exact, before in zip((output, weights, lse), want, clean, strict=True):
        reached = np.isnan(exact)
        assert np.array_equal(np.isnan(actual), reached)
        if np.isnan(poison):
            assert reached.any()
            assert_same_bits(actual[~reached], before[~reached])


@pytest.mark.parametrize("head", [0, 3])
def test_a_sink_of_nan_shows_in_its_head(head, storage, target):
    random = np.random.default_rng(0)
    shapes = (4, 9, 8), (2, 30, 8), (2, 30, 5)
    arrays = [random.standard_normal(shape).astype(storage) for shape in shapes]
    mask = random.random((9, 30)) < 0.8
    mask[4] = False
    sinks = np.zeros(4, arithmetic(storage))
    clean = sdpa(*arrays, mask, sinks=sinks, **EVERYTHING)
    sinks[head] = np.nan
    actual = sdpa(*arrays, mask, sinks=sinks, **EVERYTHING)
    others = np.arange(4) != head
    assert_same_bits(tuple(x[others] for x in actual), tuple(x[others] for x in clean))
    output, weights, lse = (x[head] for x in actual)
    sees = mask.any(axis=-1)
    assert np.isnan(output[sees]).all()
    assert np.isnan(weights[sees][mask[sees]]).all()
    assert np.isnan(lse).all()
    assert not output[~sees].any()


def test_scores_of_minus_infinity_beside_a_sink(dtype, target):
    """The sink takes all where every visible score is -inf by value; without one it is NaN."""
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
