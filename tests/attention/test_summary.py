"""Test `summarize_attention` against statistics of all weights."""

import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
import sparse_cases
import summary_reference
from drawn_problems import TARGETS, examples, on_target, problems
from error_limits import assert_within, judge
from reference import arithmetic, assert_same_bits, result_type, solve

ALL = regard.AttentionSummary._fields
HEAD = "previous_token", "induction"


def tokens_of(kv_len):
    return np.random.default_rng(kv_len).integers(0, max(kv_len // 3, 1), kv_len)


def numbers_of(problem):
    kv_len = problem.key.shape[-2]
    return {"first_keys": 5, "local_reach": 11, "tokens": tokens_of(kv_len)}


def summarize(problem, options, **more):
    more = {"statistics": ALL, "top_k": 7, **numbers_of(problem)} | more
    query = problem.query
    if problem.batch != query.shape[:-3]:  # some axes may belong to the values only
        inner = query.shape[-3:] if query.ndim > 2 else (1, *query.shape)
        query = np.broadcast_to(query, (*problem.batch, *inner))
    return regard.summarize_attention(query, problem.key, **options, **more)


@hypothesis.given(problem=problems(dropout=False, mixed=False), target=TARGETS)
@examples(150)
def test_statistics_of_all_weights(problem, target):
    options = problem.options
    numbers = numbers_of(problem)
    want = judge(summary_reference.summarize, problem, *problem.arrays, **numbers)
    with on_target(target):
        got = summarize(problem, options)
    inner = arithmetic(result_type(problem.query, problem.key))
    least = problem.key.shape[-2] * 2.0 ** {4: -100, 8: -960}[inner.itemsize]  # counts as 0
    for name, judged in want._asdict().items():
        if name == "effective_share":
            # If a sink has nearly all weight, weights whose squares underflow count as none.
            can_be_squared = want.max.exact**2 > 2**20 * np.finfo(inner).tiny
            actual = np.where(can_be_squared, 0, judged.exact).astype(inner)
            np.divide(1, got.effective_count, out=actual, where=can_be_squared)
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
        assert ((keys == places[..., None]).sum(axis=-1) == 1)[places >= 0].all()  # each key once
    largest = -np.sort(-weights, axis=-1)[..., :7]
    assert np.all(np.abs(given[..., : largest.shape[-1]] - largest) <= limit * (1 + 1e-6))


def _flat(summary):
    return (*summary[:-1], *summary.top_k) if summary.top_k else summary


def test_top_keys_far_apart(dtype, target):
    """SIMD lanes hold numbers with fewer bits than keys may need, so they count from a base, which
    moves on every 2^20 keys. The largest weights come from before and after, in any order."""
    places = np.array([2**20, 7, 2**20 + 2047, 2**21 + 1500, 2**20 - 1, 0, 2**21 + 1])
    key = np.zeros((2**21 + 3000, 1), dtype)
    key[places, 0] = np.arange(len(places), 0, -1)
    query = np.array([[1], [0], [-1]], dtype)
    found = regard.summarize_attention(query, key, statistics=["top_k"], top_k=len(places) + 2)
    keys, weights = found.top_k
    others = [1, 2]  # the first of all keys with the same weight
    assert keys[0].tolist() == [*places, *others]
    assert keys[1].tolist() == list(range(len(places) + 2))
    assert keys[2].tolist() == [k for k in range(1, len(places) + 4) if k != 7]
    assert (np.diff(weights[0]) <= 0).all()


@hypothesis.given(
    problem=problems(dropout=False, mixed=False), target=TARGETS, name=st.sampled_from(ALL)
)
@examples(60)
def test_a_choice_changes_no_number(problem, target, name):
    with on_target(target):
        whole = summarize(problem, problem.options)
        alone = summarize(problem, problem.options, statistics=[name])
    assert [each for each in ALL if getattr(alone, each) is not None] == [name]
    assert_same_bits(_tuple(getattr(alone, name)), _tuple(getattr(whole, name)))


def test_a_given_lse_is_used(target):
    query, key = np.random.default_rng(0).standard_normal((2, 3, 50, 16))
    _, lse = regard.scaled_dot_product_attention(query, key, key, return_lse=True)
    known = regard.summarize_attention(query, key, statistics=ALL[:5], lse=lse)
    assert_same_bits(_flat(known)[:5], _flat(regard.summarize_attention(query, key))[:5])
    halved = regard.summarize_attention(query, key, lse=lse + np.log(2))
    assert np.allclose(halved.max, known.max / 2, rtol=1e-14)


def test_sequences_have_what_they_have_alone(storage, target):
    random = np.random.default_rng(4)
    q_lengths, k_lengths = [1, 49, 0, 5, 130], [97, 96, 20, 300, 150]
    q_starts, k_starts = (np.concatenate([[0], np.cumsum(n)]) for n in (q_lengths, k_lengths))
    query = random.standard_normal((185, 4, 16)).astype(storage)
    key = random.standard_normal((663, 2, 16)).astype(storage)
    tokens, offsets = random.integers(0, 40, 663), np.arange(5) * 9 - 4
    more = {"statistics": ALL, "is_causal": True, "top_k": 5}
    packed = regard.summarize_attention_ragged(
        query, key, q_starts, k_starts, tokens=tokens, query_offset=offsets, **more
    )
    for i in range(5):
        rows, keys = (slice(s[i], s[i + 1]) for s in (q_starts, k_starts))
        alone = regard.summarize_attention(
            *(x.swapaxes(0, 1) for x in (query[rows], key[keys])),
            tokens=tokens[keys],
            query_offset=int(offsets[i]),
            **more,
        )
        for name in ALL:
            for part, own in zip(*(_tuple(getattr(x, name)) for x in (packed, alone)), strict=True):
                where = i if name in HEAD else keys if name.startswith("column") else rows
                own = own if name in HEAD else own.swapaxes(0, 1)
                assert np.array_equal(part[where], own, equal_nan=True), name


def _tuple(field):
    return field if isinstance(field, tuple) else (field,)


def test_rows_without_keys(dtype, target):
    for shape in ((0, 5, 8), (2, 0, 8)):
        summary = regard.summarize_attention(np.ones(shape), np.ones((shape[0], 7, 8)))
        assert summary.entropy.shape == shape[:2]
        assert (summary.column_sums == np.zeros((shape[0], 7))).all()
    query, key = np.ones((2, 1, 5, 8), dtype)
    everything = {"statistics": ALL, "tokens": np.zeros(5, int), "top_k": 2}
    summary = regard.summarize_attention(query, key, mask=np.zeros((5, 5), bool), **everything)
    for name in ALL[:-1]:
        assert (getattr(summary, name) == 0).all(), name
    assert (summary.top_k.keys == -1).all()
    none = regard.summarize_attention(query, key[:, :0], statistics=ALL[:9])
    assert (none.entropy == 0).all()
    assert none.column_sums.shape == (1, 0)
    assert np.isnan(none.previous_token).all()


def test_of_equal_weights_the_first_keys_come_first(dtype, target):
    query, key = np.ones((2, 1, 5, 8), dtype), np.ones((2, 1, 110, 8), dtype)
    key[1, :, ::3] = 1.5  # keys in between weigh less and come later
    top = regard.summarize_attention(query, key, statistics="top_k", top_k=40).top_k
    order = np.argsort(np.arange(110) % 3 > 0, kind="stable")
    assert np.array_equal(top.keys, np.broadcast_to([[[range(40)]], [[order[:40]]]], (2, 1, 5, 40)))
    assert (top.weights[0] == top.weights[0, 0, 0, 0]).all()


def test_nan_shows_in_the_rows_that_see_it(dtype, target):
    query, key = np.random.default_rng(1).standard_normal((2, 2, 40, 8)).astype(dtype)
    key[0, 20] = np.nan
    summary = regard.summarize_attention(query, key, is_causal=True, statistics=ALL[:7])
    clean = regard.summarize_attention(
        query, np.nan_to_num(key), is_causal=True, statistics=ALL[:7]
    )
    for name in ALL[:6]:
        got, want = getattr(summary, name), getattr(clean, name)
        assert np.isnan(got[0, 20:]).all(), name
        assert_same_bits(got[0, :20], want[0, :20])
        assert_same_bits(got[1], want[1])
    assert np.isnan(summary.column_sums[0, :21]).all()


def test_progress_reports_and_may_stop():
    query = np.zeros((4, 3000, 32), np.float32)
    seen = []
    regard.summarize_attention(query, query, progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == (12000, 12000)
    assert sorted(seen) == seen

    def stop(done, everything):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        regard.summarize_attention(query, query, progress=stop)


@pytest.mark.parametrize("package", ["tqdm", "rich"])
def test_a_bar(package, monkeypatch, capfd):
    pytest.importorskip(package, reason=f"pip install {package}")
    if package == "rich":
        monkeypatch.setitem(sys.modules, "tqdm", None)
    query = np.zeros((2, 100, 8))
    regard.summarize_attention(query, query, progress=True)
    regard.attention_map(query, query, progress=True, regions=[(slice(9), slice(9))] * 3)
    out, err = capfd.readouterr()
    assert (err if package == "tqdm" else out).count("100%") == 2


def test_tokens_may_be_texts():
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "cat", "ran"]
    numbers = np.unique(words, return_inverse=True)[1]
    query, key = np.random.default_rng(0).standard_normal((2, 3, 10, 4))
    want = regard.summarize_attention(query, key, statistics="induction", tokens=numbers)
    for texts in (words, np.array(words, object)):
        got = regard.summarize_attention(query, key, statistics="induction", tokens=texts)
        assert_same_bits((got.induction,), (want.induction,))


@pytest.mark.parametrize("form", ["ranges of heads", "blocks of all heads", "fewer keys"])
def test_packed_sequences_under_sparse_masks(form, dtype, target):
    """Rows are the packed queries; keys are counted from the first key of each sequence."""
    query_starts, key_starts = [0, 3, 3, 150, 200], [0, 40, 90, 220, 260]
    random = np.random.default_rng(0)
    query, key = (random.standard_normal((n, 4, 8)).astype(dtype) for n in (200, 260))
    sparse = sparse_cases.sparse_masks(1, 4, 200, 130)[form]
    dense = sparse_cases.dense(sparse, 130)
    dense = dense[:, None] if dense.ndim == 2 else dense.swapaxes(0, 1)
    bias = random.standard_normal((200, 1, 130)).astype(dtype)
    options = {
        "statistics": ALL,
        "tokens": tokens_of(260),
        "distance_bias": random.standard_normal((4, 9)),
        "scale": [0.1, 0.2, 0.3, 0.4],
    }
    given = query, key, query_starts, key_starts
    found, wanted = (
        regard.summarize_attention_ragged(*given, (mask, bias), **options)
        for mask in (sparse, dense)
    )
    for name, one, other in zip(ALL[:-1], found, wanted, strict=False):
        np.testing.assert_array_equal(one, other, err_msg=name)
    assert_same_bits(tuple(found.top_k), tuple(wanted.top_k))
