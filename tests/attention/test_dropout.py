"""Test dropout of weights: only the seed and the position of a weight determine whether it is
dropped, by Philox4x32-10 as in `tests/support/philox.py`."""

import dataclasses
import functools
import itertools
import re

import numpy as np
import pytest

import gradient_reference
import regard
from cases import LAYOUTS, Case, Problem
from element_types import each_in_one_type
from gradient_cases import FEW, OTHERS, assert_within, build, drawn, judge
from int8_model import rounded_problem
from option_cases import MIXES
from philox import dropout_factors, words
from reference import arithmetic, assert_same_bits, half_ulp

sdpa = regard.scaled_dot_product_attention
ragged = regard.scaled_dot_product_attention_ragged
EVERYTHING = {"return_weights": True, "return_lse": True}
SEED = 0xFEDCBA9876543210


@functools.lru_cache(maxsize=8)
def solved(case, dtype):
    """Return a problem and the oracle's result, computed once for all targets."""
    problem = build(case, dtype, 0.35)
    return problem, judge(gradient_reference.forward, problem, *problem.arrays)


def check(case, dtype, threads=None):
    problem, want = solved(case, dtype)
    options = problem.options | {"threads": threads}
    actual = sdpa(*problem.arrays, **options, **EVERYTHING)
    for name, judged, part in zip(want._fields, want, actual, strict=True):
        assert_within(judged, part, arithmetic(dtype) if name == "lse" else dtype, name)
    # Without weights the kernel cannot keep a row of scores and takes another code path.
    output, _, lse = actual
    assert_same_bits(sdpa(*problem.arrays, **options, return_lse=True), (output, lse))
    assert_same_bits(sdpa(*problem.arrays, **options), output)
    plain = {k: v for k, v in options.items() if not k.startswith("dropout")}
    assert_same_bits(sdpa(*problem.arrays, **plain, **EVERYTHING)[2], lse)


@each_in_one_type(FEW, "storage")
def test_oracle_of_dropout(case, storage, target):
    check(case, storage)


@pytest.mark.slow
@each_in_one_type(OTHERS[::4], "storage", often=2)
def test_oracle_of_dropout_in_the_other_cases(case, storage, target):
    check(case, storage, threads=2)


def uniform(shape, dtype=np.float32):
    """Return arrays whose queries are zeros, so that every key has the same weight."""
    *batch, heads, q_len, kv_len = shape
    query, key = np.zeros((*batch, heads, q_len, 1)), np.ones((*batch, heads, kv_len, 1))
    return tuple(x.astype(dtype) for x in (query, key, key))


def kept_by_call(shape, p, seed, dtype=np.float32, **options):
    """Return which weights a call keeps, as booleans."""
    _, weights = sdpa(
        *uniform(shape, dtype), dropout_p=p, dropout_seed=seed, return_weights=True, **options
    )
    return weights > 0


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, SEED, 2**64 - 1])
@pytest.mark.parametrize("p", [2.0**-40, 2.0**-32, 0.1, 0.5, 0.9, 1 - 2.0**-32, 1 - 2.0**-53])
def test_what_is_kept_is_what_the_words_say(p, seed, dtype, target):
    """The kept weights are exact for any probability, at positions below and beyond 32 bits, and
    for every head."""
    for shape, offset in [
        ((2, 3, 5, 37), 0),
        ((1, 300), 2**32 - 1),
        ((2, 1, 2, 7, 100), [[-3], [2**40]]),
        ((3, 130, 101), -70),
    ]:
        shape = (1, *shape) if len(shape) == 2 else shape
        wanted = words(shape, seed=seed, query_offset=offset) >= p * 2.0**32
        assert np.array_equal(kept_by_call(shape, p, seed, dtype, query_offset=offset), wanted)


@pytest.mark.parametrize("seed", [5, np.int8(5), np.uint64(2**64 - 1), np.array(7)])
def test_seeds_of_any_integer_kind(seed, target):
    wanted = words((2, 5, 40), seed=int(seed)) >= 0.3 * 2.0**32
    assert np.array_equal(kept_by_call((2, 5, 40), 0.3, seed), wanted)


@pytest.mark.parametrize("p", [0.25, np.float32(0.25), np.float64(0.25), np.float16(0.25)])
def test_shares_of_any_real_kind(p, target):
    wanted = words((2, 5, 40), seed=1) >= 2.0**30
    assert np.array_equal(kept_by_call((2, 5, 40), p, 1), wanted)


def test_a_share_is_compared_as_it_is(target):
    """The words are next to p 2^32, so that float32 could not distinguish them from it."""
    shape = (4, 30, 50)
    all_words = words(shape, seed=11)
    for word in all_words[0, 0, :5].tolist():
        for p in (word / 2**32, (word + 0.5) / 2**32, (word + 1) / 2**32):
            wanted = all_words >= p * 2.0**32
            assert np.array_equal(kept_by_call(shape, p, 11, np.float64), wanted)


@each_in_one_type(MIXES[::8], "storage")
def test_no_dropout_has_the_bits_of_none(case, storage, target):
    """A probability of 0 needs no seed, and a given seed changes nothing."""
    problem = case.build(storage)
    wanted = sdpa(*problem.arrays, **problem.options, **EVERYTHING)
    for extra in ({"dropout_p": 0.0}, {"dropout_p": 0}, {"dropout_p": 0.0, "dropout_seed": SEED}):
        actual = sdpa(*problem.arrays, **problem.options, **EVERYTHING, **extra)
        assert_same_bits(actual, wanted)
    none = sdpa(*problem.arrays, **problem.options, **EVERYTHING, dropout_seed=None)
    assert_same_bits(none, wanted)


# Statistics with fixed seeds: every run draws the same numbers.


def share_kept(shape, p, seed):
    return kept_by_call(shape, p, seed).astype(np.float64).reshape(-1, *shape[-2:])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, SEED])
def test_statistics_of_what_is_kept(seed, p):
    """Check the mean, the variance, and that neighbors, rows, columns, heads, entries and seeds are
    not correlated, each within five standard deviations of independent draws."""
    shape = (2, 4, 160, 200)
    kept = kept_by_call(shape, p, seed).astype(np.float64)
    q, n = 1 - p, kept.size
    assert abs(kept.mean() - q) <= 5 * np.sqrt(p * q / n)
    assert abs((kept / q).mean() - 1) <= 5 * np.sqrt(p / q / n)
    assert abs((kept / q).var() - p / q) <= 5 * np.sqrt(p / q / n) * (1 / q + 1)
    off = kept - q
    for axis, lag in itertools.product(range(4), (1, 2, 3, 4, 8)):
        if lag < shape[axis]:
            products = np.delete(off, range(lag), axis) * np.delete(off, range(-lag, 0), axis)
            assert abs(products.mean()) <= 5 * p * q / np.sqrt(products.size), (axis, lag)
    for other in (seed ^ 1, seed ^ 2**31, seed ^ 2**32, seed ^ 2**63):
        products = off * (kept_by_call(shape, p, other) - q)
        assert abs(products.mean()) <= 5 * p * q / np.sqrt(n)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_chi_squared_of_what_is_kept(p):
    """Check counts in rows, in columns, and of the patterns of four neighbors that share a counter.
    A sum of squares of n standard normal numbers is about n, with a deviation of sqrt(2 n)."""
    kept = kept_by_call((4, 256, 512), p, 3)
    q = 1 - p
    for axes, size in (((0, 2), 4 * 512), ((0, 1), 4 * 256), ((1, 2), 256 * 512)):
        counts = kept.sum(axis=axes)
        squared = ((counts - size * q) ** 2 / (size * p * q)).sum()
        assert abs(squared - counts.size) <= 5 * np.sqrt(2 * counts.size)
    bits = kept.reshape(4, 256, 128, 4)
    patterns = np.bincount((bits @ [1, 2, 4, 8]).ravel(), minlength=16)
    ones = np.array([bin(i).count("1") for i in range(16)])
    wanted = patterns.sum() * q**ones * p ** (4 - ones)
    squared = ((patterns - wanted) ** 2 / wanted).sum()
    assert abs(squared - 15) <= 5 * np.sqrt(2 * 15)


# Bit equality


@each_in_one_type(MIXES[::6], "storage")
def test_dropout_for_any_number_of_threads(case, storage, target, layer):
    problem = build(case, storage, 0.35)
    one, *others = (problem.attend(threads=n, return_weights=True) for n in (1, 2, 3, 5))
    for other in others:
        assert_same_bits(other, one)


@each_in_one_type(MIXES[::9], "dtype")
def test_dropout_of_some_rows_and_of_fewer_keys(case, dtype, target):
    """Some rows by themselves drop the weights that they drop among all rows, and so do the first
    keys."""
    problem = build(case, dtype, 0.35)
    output, weights, lse = problem.attend(return_weights=True)
    q_len, kv_len = weights.shape[-2:]
    for length in (1, 3, 11):
        for start in range(0, q_len, length):
            rows = slice(start, start + length)
            alone = problem.rows(start, start + length).attend(return_weights=True)
            wanted = output[..., rows, :], weights[..., rows, :], lse[..., rows]
            assert_same_bits(alone, wanted)
    numbers = {"p": 0.35, "seed": problem.options["dropout_seed"]}
    numbers["origin"] = problem.options.get("dropout_origin", (0, 0, 0))
    offsets = np.broadcast_to(problem.options["query_offset"], problem.batch)
    kept = dropout_factors(weights.shape, **numbers, query_offset=offsets) > 0
    for count in (1, 8, kv_len // 2):
        fewer = Problem.keys(problem, count)
        plain = {k: v for k, v in fewer.options.items() if not k.startswith("dropout")}
        _, all_weights = sdpa(*fewer.arrays, **plain, return_weights=True)
        _, some = sdpa(*fewer.arrays, **fewer.options, return_weights=True)
        assert np.array_equal(some > 0, (all_weights > 0) & kept[..., :count])


SHAPES = (2, 4, 37, 19), (2, 2, 230, 19), (2, 2, 230, 23)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("q_len", [1, 2, 5])
def test_few_rows_drop_what_they_drop_among_many(q_len, heads, storage, target):
    """Without dropout, another kernel would compute these decoding calls."""
    shapes = (2, heads[0], 40, 64), (2, heads[1], 700, 64), (2, heads[1], 700, 48)
    case = Case(
        "few rows", *shapes, is_causal=True, query_offset=(660, 500), key_lengths=(700, 650)
    )
    problem = build(case, storage, 0.2)
    output, weights, lse = problem.attend(return_weights=True)
    for start in (0, 13, 40 - q_len):
        rows = slice(start, start + q_len)
        alone = problem.rows(start, start + q_len)
        wanted = output[..., rows, :], lse[..., rows]
        assert_same_bits(alone.attend(), wanted)
        assert_same_bits(alone.attend(return_weights=True)[1], weights[..., rows, :])


@each_in_one_type(LAYOUTS, "storage")
def test_dropout_in_any_layout(case, storage, target):
    problem = build(Case("layouts", *SHAPES, window=(90, 10), query_offset=150), storage, 0.35)
    wanted = problem.attend(return_weights=True)
    lay = LAYOUTS[case]
    moved = {name: lay(getattr(problem, name)) for name in ("query", "key", "value")}
    moved = dataclasses.replace(problem, **moved)
    assert_same_bits(moved.attend(return_weights=True, threads=3), wanted)
    if case not in ("read_only", "byte_swapped"):
        out = lay(np.full(wanted[0].shape, 7, storage))
        assert moved.attend(out=out)[0] is out
        assert_same_bits(out, wanted[0])


def test_a_broadcast_batch_drops_by_its_entries(dtype, target):
    """Each entry has its own number, even if all entries share the same arrays."""
    arrays = [drawn(shape, dtype, 1) for shape in ((2, 9, 8), (2, 21, 8), (2, 21, 6))]
    options = {"dropout_p": 0.4, "dropout_seed": 5, "return_weights": True}
    wide = [np.broadcast_to(x, (3, 2, *x.shape)) for x in arrays]
    output, weights = sdpa(wide[0], *arrays[1:], **options)
    assert_same_bits(sdpa(*wide, **options), (output, weights))
    factors = dropout_factors((3, 2, 2, 9, 21), p=0.4, seed=5)
    assert np.array_equal(weights > 0, factors > 0)
    assert_same_bits(sdpa(*arrays, **options), (output[0, 0], weights[0, 0]))


@pytest.mark.parametrize("position", [0, 1, 2, 3, 8, 2**32 - 2, 2**34 + 3])
@pytest.mark.parametrize("numbers", [(0, 0), (5, 3), (2**32 - 1, 2**40 + 7)])
def test_an_origin_is_added_to_every_place(numbers, position, dtype, target):
    arrays = uniform((2, 3, 50, 21), dtype)
    options = {"dropout_p": 0.4, "dropout_seed": SEED, "query_offset": -9}
    origin = *numbers, position
    _, weights = sdpa(*arrays, **options, dropout_origin=origin, return_weights=True)
    wanted = dropout_factors(weights.shape, p=0.4, seed=SEED, query_offset=-9, origin=origin)
    assert np.array_equal(weights > 0, wanted > 0)


@each_in_one_type(MIXES[::5], "storage")
def test_a_part_drops_what_the_whole_drops(case, storage, target):
    problem = build(case, storage, 0.35)
    whole = problem.attend(return_weights=True, dropout_origin=(2, 1, 5))
    for number, index in enumerate(np.ndindex(*problem.batch)):
        entry = problem.entry(index)
        for head in range(len(entry.query)):
            alone = entry.head(head)
            options = alone.options | EVERYTHING | {"dropout_origin": (2 + number, 1 + head, 5)}
            wanted = tuple(part[index][head] for part in whole)
            assert_same_bits(sdpa(*alone.arrays, **options), wanted)


@pytest.mark.parametrize("start", [1, 2, 3, 4, 96, 101])
def test_some_of_the_keys_drop_what_they_drop_among_all(start, storage, target):
    arrays = [drawn(shape, storage, 1) for shape in ((4, 30, 8), (2, 200, 8), (2, 200, 6))]
    options = {"is_causal": True, "dropout_p": 0.4, "dropout_seed": SEED, "return_weights": True}
    _, whole = sdpa(*arrays, **options, query_offset=160)
    keys = (array[:, start:] for array in arrays[1:])
    _, some = sdpa(
        arrays[0], *keys, **options, query_offset=160 - start, dropout_origin=(0, 0, start)
    )
    assert np.array_equal(some > 0, whole[..., start:] > 0)


@pytest.mark.parametrize(
    ("origin", "kind", "message"),
    [
        (5, TypeError, "dropout_origin must be three integers (entry, head, position), got int"),
        (
            "abc",
            TypeError,
            "dropout_origin must be three integers (entry, head, position), got str",
        ),
        ((1, 2), ValueError, "three integers (entry, head, position), got 2 elements"),
        ((1, 2.0, 3), TypeError, "the head of dropout_origin must be an integer, got float"),
        ((-1, 0, 0), ValueError, "the entry of dropout_origin must not be negative, got -1"),
        ((0, 0, 2**63), ValueError, "the position of dropout_origin must fit in 64 bits"),
    ],
)
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.5, "dropout_seed": 1}])
def test_errors_of_an_origin(dropout, origin, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        sdpa(*uniform((1, 2, 3)), **dropout, dropout_origin=origin)


# Together with the rest of regard


@each_in_one_type(list(itertools.product(("end", 3, "each"), (0.0, 0.5))), "storage")
def test_sequences_drop_by_their_number(case, storage, target):
    offset, sinks = case
    q_lengths, k_lengths = [1, 49, 0, 5, 130], [97, 96, 20, 300, 150]
    q_starts, k_starts = (np.concatenate([[0], np.cumsum(n)]) for n in (q_lengths, k_lengths))
    arrays = drawn((185, 4, 16), storage, 1), drawn((663, 2, 16), storage, 2)
    arrays += (drawn((663, 2, 11), storage, 3),)
    offsets = np.arange(5) * 9 - 4 if offset == "each" else offset
    options = {"is_causal": True, "dropout_p": 0.3, "dropout_seed": SEED, "query_offset": offsets}
    options["sinks"] = np.full(4, sinks, arithmetic(storage))
    output, weights, lse = ragged(*arrays, q_starts, k_starts, **options, **EVERYTHING)
    for threads in (1, 3):
        again = ragged(*arrays, q_starts, k_starts, **options, **EVERYTHING, threads=threads)
        assert_same_bits(again, (output, weights, lse))
    for s in range(5):
        rows, keys = slice(*q_starts[s : s + 2]), slice(*k_starts[s : s + 2])
        parts = (x.swapaxes(0, 1) for x in (arrays[0][rows], arrays[1][keys], arrays[2][keys]))
        own = options | {"query_offset": offsets[s] if offset == "each" else offset}
        problem = Problem(*parts, own)
        want = judge(gradient_reference.forward, problem, *problem.arrays, entries=s)
        length = k_lengths[s]
        actual = output[rows], weights[rows, :, :length], lse[rows]
        for judged, part in zip(want, actual, strict=True):
            part = np.ascontiguousarray(part.swapaxes(0, 1))
            assert_within(judged, part, part.dtype)
        assert not weights[rows, :, length:].any()


@each_in_one_type(["plain", "causal", "lengths"], "single_or_half")
def test_dropout_of_weights_from_integers(case, single_or_half, int8_target):
    """The result has the weights of 8-bit scores, times the same factors; lse includes all of these
    weights."""
    options = {
        "plain": {},
        "causal": {"is_causal": True, "query_offset": 190},
        "lengths": {"key_lengths": (230, 101)},
    }[case]
    problem = build(Case(f"int8 {case}", *SHAPES, **options), single_or_half, 0.35)
    plain = {k: v for k, v in problem.options.items() if not k.startswith("dropout")}
    int8 = {"precision": "int8", **EVERYTHING}
    _, undropped, lse = sdpa(*problem.arrays, **plain, **int8)
    output, weights, dropped_lse = sdpa(*problem.arrays, **problem.options, **int8)
    assert_same_bits(dropped_lse, lse)
    factors = dropout_factors(
        weights.shape,
        **{"p": 0.35, "seed": problem.options["dropout_seed"]},
        origin=problem.options.get("dropout_origin", (0, 0, 0)),
        query_offset=problem.options["query_offset"],
    )
    (wide_query, wide_key), wide_options, _ = rounded_problem(*problem.arrays, **plain)
    exact = Problem(wide_query, wide_key, problem.value.astype(float), wide_options)
    want = gradient_reference.forward(
        *exact.arrays,
        **exact.options,
        **{k: v for k, v in problem.options.items() if k.startswith("dropout")},
    )
    # The errors of scores with rows twice as long, and the rounding of each result as it is stored.
    limit, dropped = 128 * float(np.finfo(arithmetic(single_or_half)).eps), undropped * factors
    rounding = half_ulp(dropped, single_or_half) + factors * half_ulp(undropped, single_or_half)
    assert (np.abs(weights - dropped) <= limit * dropped + rounding).all()
    rounding = half_ulp(want.weights, single_or_half)
    assert (np.abs(weights - want.weights) <= limit * want.weights.max() + rounding).all()
    rounding, sizes = half_ulp(np.abs(want.output), single_or_half), np.abs(exact.value).max()
    assert (np.abs(output - want.output) <= limit * sizes + rounding).all()


@each_in_one_type(MIXES[::12], "dtype")
def test_gradients_drop_what_the_forward_call_dropped(case, dtype, target):
    """If only one row has a gradient of its output, the gradient of the values is that row's
    weights."""
    problem = build(case, dtype, 0.35).whole()
    _, weights, lse = problem.attend(return_weights=True)
    group = problem.query.shape[-3] // problem.key.shape[-3]
    key, zeros = np.repeat(problem.key, group, axis=-3), np.zeros((*weights.shape[:-1], 1), dtype)
    arrays = problem.query, key, np.zeros((*key.shape[:-1], 1), dtype)
    for row in range(0, weights.shape[-2], 7):
        grads = zeros.copy()
        grads[..., row, :] = 1
        gradients = regard.scaled_dot_product_attention_backward(
            grads, *arrays, zeros, lse, **problem.options
        )
        shown = weights[..., row, :]
        assert np.array_equal(gradients.value[..., 0] > 0, shown > 0)
        assert np.allclose(gradients.value[..., 0], shown, 1e-4, 1e-30)


@pytest.mark.parametrize("offset", [2**32 + 5, 2**62, 2**63 - 9, -(2**62) - 3, -(2**63)])
def test_positions_of_any_size_count_modulo_2_to_the_32(offset, target):
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((2, n, 4)) for n in (7, 20, 20))
    options = {"dropout_p": 0.5, "dropout_seed": 3}
    attend = regard.scaled_dot_product_attention
    wanted = attend(query, key, value, query_offset=offset % 2**32, **options)
    assert np.array_equal(attend(query, key, value, query_offset=offset, **options), wanted)
