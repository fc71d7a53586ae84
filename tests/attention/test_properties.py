"""Test properties of attention under all options: weights add up to one, order and a shift do not
matter, and parts make the whole."""

import dataclasses
import functools
import zlib

import numpy as np
import pytest

import regard
from cases import solved
from element_types import each_in_one_type
from option_cases import MIXES
from reference import arithmetic, assert_matches, error, expected, half_ulp, largest, lay_out

sdpa = regard.scaled_dot_product_attention
EVERYTHING = {"return_weights": True, "return_lse": True}


def attend(problem, **options):
    return sdpa(*problem.arrays, **problem.options | options)


def plain(dtype, *, q_len=19, kv_len=130):
    random = np.random.default_rng(0)
    shapes = (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


@each_in_one_type(MIXES, "storage")
def test_weights_and_the_sink_share_one(case, storage, target):
    """Whatever the scores, the sum is off by the additions (kv_len / 2 eps), the division and the
    rounding of each weight. A sink's share is as accurate as its lse."""
    problem = case.build(storage)
    _, weights, lse = attend(problem, **EVERYTHING)
    sinks = problem.options.get("sinks", [-np.inf])
    sinks = np.asarray(sinks, np.float64)[:, None] if lse.ndim > 1 else np.float64(sinks)
    seen = lay_out(*problem.arrays, **problem.options, precision=np.float64).seen.any(-1)
    seen, eps = seen.reshape(lse.shape), np.finfo(lse.dtype).eps
    with np.errstate(invalid="ignore"):
        share = np.where(seen, np.exp(sinks - lse), 1)
    weights = weights.astype(np.longdouble)
    rounding = half_ulp(weights + np.finfo(np.float32).tiny, storage).sum(axis=-1)
    limit = eps * (weights.shape[-1] / 2 + 8 + 2 * np.where(seen, np.abs(lse), 0)) + rounding
    assert (np.abs(weights.sum(axis=-1) + share - 1) <= limit)[seen].all()
    assert not weights[~seen].any()


@pytest.mark.parametrize("kind", [None, "bool", "float"])
def test_the_order_of_keys_does_not_matter(kind, storage, target):
    arrays = plain(storage, kv_len=220)
    random = np.random.default_rng(1)
    seen = random.random((4, 19, 220)) < 0.6
    mask = {None: None, "bool": seen, "float": np.where(seen, 0.5, -np.inf).astype(storage)}[kind]
    options = {"softcap": 2.0, "sinks": np.array([0.0, 1, -1, 2], arithmetic(storage))}
    order = random.permutation(220)
    want = expected(*arrays, mask, **options)
    query, key, value = arrays
    output, weights, lse = sdpa(
        query,
        key[..., order, :],
        value[..., order, :],
        None if mask is None else mask[..., order],
        **options,
        **EVERYTHING,
    )
    assert_matches(want, output=output, weights=weights[..., np.argsort(order)], lse=lse)


@pytest.mark.parametrize("shift", [-3.0, 0.5, 20.0])
def test_a_shift_of_all_scores_does_not_matter(shift, storage, target):
    """The sink is shifted too, and lse moves with it."""
    arrays, inner = plain(storage), arithmetic(storage)
    sinks = np.array([0.0, 1, -np.inf, 2], inner)
    options = {"softcap": 2.0, "alibi_slopes": np.array([0.1, 0.2, 0, -0.1], inner)}
    want = expected(*arrays, **options, sinks=sinks)
    mask = np.full((1, 1), shift, storage)
    moved = expected(*arrays, mask, **options, sinks=sinks + inner.type(shift))
    output, weights, lse = sdpa(
        *arrays, mask, **options, sinks=sinks + inner.type(shift), **EVERYTHING
    )
    limit = moved.limit
    assert_matches(moved, output=output, weights=weights, lse=lse)
    assert_matches(want._replace(limit=limit), output=output, weights=weights)
    assert error(lse - want.exact.lse, shift) <= limit.lse


def halves(problem, split):
    """Return the keys before and from `split` on as two problems; the first has the sinks."""
    first = problem.keys(split)
    options = dict(problem.options)
    options["query_offset"] = np.asarray(options.get("query_offset", 0)) - split
    mask = options.get("mask")
    if mask is not None and mask.ndim and mask.shape[-1] > 1:
        options["mask"] = mask[..., split:]
    for name in ("key_lengths", "left_padding"):
        if options.get(name) is not None:
            options[name] = np.maximum(np.asarray(options[name]) - split, 0)
    options.pop("sinks", None)
    second = dataclasses.replace(
        problem,
        key=problem.key[..., split:, :],
        value=problem.value[..., split:, :],
        options=options,
    )
    return first, second


@functools.lru_cache(maxsize=16)
def limits_of_halves(case, dtype, split):
    parts = halves(case.build(dtype), split)
    return [expected(*part.arrays, **part.options).limit for part in parts]


@each_in_one_type(MIXES, "dtype", quick=2, often=2)
def test_two_halves_are_the_whole(case, dtype, target):
    """When merged, each half counts by its lse, so an error in its lse is an error of its weight.
    exp, sums and a division are worth 4 eps (1 + |lse|)."""
    problem, want = solved(case, dtype)
    kv_len = problem.key.shape[-2]
    ends = (0, kv_len)[zlib.crc32(case.name.encode()) % 2]
    for split in (ends, min(96, kv_len // 2)):
        states = [attend(part, return_lse=True) for part in halves(problem, split)]
        output, lse = regard.merge_attention_states(*zip(*states, strict=True))
        limits = limits_of_halves(case, dtype, split)
        finite = want.exact.lse[np.isfinite(want.exact.lse)]
        allowed = sum(limit.lse for limit in limits)
        allowed += 4 * float(np.finfo(dtype).eps) * (1 + largest(finite))
        assert error(lse, want.exact.lse) <= allowed
        allowed = allowed * largest(problem.value) + sum(limit.output for limit in limits)
        assert error(output, want.exact.output) <= allowed
        blind = ~want.seen.any(axis=-1)
        assert not output[blind].any()
