"""Test dropout of weights: only the seed and the position of a weight determine whether it is
dropped, by Philox4x32-10 as in `tests/support/philox.py`."""

import numpy as np
import pytest

import reference
import regard
from cases import Case, build
from element_types import each_in_one_type
from error_limits import half_ulp
from int8_model import rounded_problem
from philox import dropout_factors, words
from problem import drawn
from reference import arithmetic, assert_same_bits

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}
SEED = 0xFEDCBA9876543210


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
@pytest.mark.parametrize("p", [2.0**-40, 0.1, 0.5, 1 - 2.0**-32, 1 - 2.0**-53])
def test_what_is_kept_is_what_the_words_say(p, seed, dtype, target):
    """The kept weights are exact for any probability, at positions below and beyond 32 bits, and
    for every head."""
    for shape, offset in [
        ((2, 3, 5, 37), 0),
        ((1, 300), 2**32 - 1),
        ((2, 1, 2, 7, 100), [[-3], [2**40]]),
        ((3, 130, 101), -70),
        ((1, 7, 20), 2**63 - 9),
        ((1, 7, 20), -(2**63)),
    ]:
        shape = (1, *shape) if len(shape) == 2 else shape
        wanted = words(shape, seed=seed, query_offset=offset) >= p * 2.0**32
        assert np.array_equal(kept_by_call(shape, p, seed, dtype, query_offset=offset), wanted)


def test_a_share_is_compared_as_it_is(target):
    """The words are next to p 2^32, so that float32 could not distinguish them from it."""
    shape = (4, 30, 50)
    all_words = words(shape, seed=11)
    for word in all_words[0, 0, :5].tolist():
        for p in (word / 2**32, (word + 0.5) / 2**32, (word + 1) / 2**32):
            wanted = all_words >= p * 2.0**32
            assert np.array_equal(kept_by_call(shape, p, 11, np.float64), wanted)


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


SHAPES = (2, 4, 37, 19), (2, 2, 230, 19), (2, 2, 230, 23)


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
    arrays, wide_options = rounded_problem(*problem.arrays, **plain)
    dropout = {k: v for k, v in problem.options.items() if k.startswith("dropout")}
    want = reference.attention(*arrays, **wide_options, **dropout)
    # The errors of scores with rows twice as long, and the rounding of each result as it is stored.
    limit, dropped = 128 * float(np.finfo(arithmetic(single_or_half)).eps), undropped * factors
    rounding = half_ulp(dropped, single_or_half) + factors * half_ulp(undropped, single_or_half)
    assert (np.abs(weights - dropped) <= limit * dropped + rounding).all()
    rounding = half_ulp(want.weights, single_or_half)
    assert (np.abs(weights - want.weights) <= limit * want.weights.max() + rounding).all()
    rounding, sizes = half_ulp(np.abs(want.output), single_or_half), np.abs(arrays[2]).max()
    assert (np.abs(output - want.output) <= limit * sizes + rounding).all()
