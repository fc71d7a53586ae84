"""What `summarize_attention` says of weights, against all of them."""

import functools

import numpy as np
import pytest

import regard
import summary_reference
from element_types import each_in_one_type
from gradient_cases import FEW, OTHERS, assert_within, build, judge
from gradient_reference import solve
from option_cases import MIXES
from reference import arithmetic, assert_same_bits, result_type

ALL = regard.AttentionSummary._fields
HEAD = "previous_token", "induction"


def tokens_of(kv_len):
    return np.random.default_rng(kv_len).integers(0, max(kv_len // 3, 1), kv_len)


def numbers_of(problem):
    kv_len = problem.key.shape[-2]
    return {"sink_keys": 5, "local_reach": 11, "tokens": tokens_of(kv_len)}


@functools.lru_cache(maxsize=8)
def solved(case, dtype):
    problem = build(case, dtype, 0.0)
    options = {k: v for k, v in problem.options.items() if not k.startswith("dropout")}
    return (
        problem,
        options,
        judge(summary_reference.summarize, problem, *problem.arrays, **numbers_of(problem)),
    )


def summarize(problem, options, **more):
    more = {"statistics": ALL, "top_k": 7, **numbers_of(problem)} | more
    query = problem.query
    if problem.batch != query.shape[:-3]:  # some of its axes may be those of the values alone
        inner = query.shape[-3:] if query.ndim > 2 else (1, *query.shape)
        query = np.broadcast_to(query, (*problem.batch, *inner))
    return regard.summarize_attention(query, problem.key, **options, **more)


def check(case, dtype):
    problem, options, want = solved(case, dtype)
    got = summarize(problem, options)
    inner = arithmetic(result_type(problem.query, problem.key))
    least = problem.key.shape[-2] * 2.0 ** {4: -100, 8: -960}[inner.itemsize]  # which counts as 0
    for name, judged in want._asdict().items():
        if name == "square_sum":
            eff = got.effective_count
            actual = np.divide(1, eff, out=np.zeros_like(eff), where=eff != 0)
        else:
            actual = getattr(got, name)
        if name in HEAD:
            assert (np.isnan(actual) <= (judged.exact == 0)).all(), name
            actual = np.nan_to_num(actual)
        judged = judged._replace(limit=judged.limit + least)
        assert_within(judged, np.asarray(actual), inner, name)
    check_top(problem, options, got.top_k, want.max.limit)


def check_top(problem, options, top, limit):
    s = solve(*problem.arrays, **options, precision=np.longdouble)
    weights = s.shaped(np.where(s.seen, s.weights, 0))
    keys, given = top
    assert keys.dtype == np.int64
    assert keys.shape == given.shape == (*weights.shape[:-1], 7)
    assert (np.diff(given, axis=-1) <= 0).all()
    assert np.array_equal(keys == -1, given == 0)
    at = np.take_along_axis(weights, np.maximum(keys, 0), axis=-1) if weights.shape[-1] else 0
    assert np.all((np.abs(at - given) <= limit + 1e-6 * limit) | (keys == -1))
    for places in np.moveaxis(keys, -1, 0):
        assert ((keys == places[..., None]).sum(axis=-1) == 1)[places >= 0].all()  # once each
    largest = -np.sort(-weights, axis=-1)[..., :7]
    assert np.all(np.abs(given[..., : largest.shape[-1]] - largest) <= limit * (1 + 1e-6))


@each_in_one_type(FEW, "storage")
def test_oracle(case, storage, target):
    check(case, storage)


@pytest.mark.slow
@each_in_one_type(OTHERS, "storage")
def test_oracle_of_the_other_cases(case, storage, target):
    check(case, storage)


@each_in_one_type(MIXES[::6], "storage")
def test_any_number_of_threads(case, storage, target, layer):
    problem, options, _ = solved(case, storage)
    one = summarize(problem, options, threads=1)
    for threads in (2, 3, 8):
        assert_same_bits(_flat(summarize(problem, options, threads=threads)), _flat(one))


def _flat(summary):
    return (*summary[:-1], *summary.top_k) if summary.top_k else summary
