"""Test the numerical contract: hidden elements cannot matter, visible ones must show, and extreme
scores have their exact meaning."""

import numpy as np
import pytest

import error_limits
import reference
import regard
from error_limits import assert_matches
from reference import attention, error, largest

sdpa = regard.scaled_dot_product_attention
KV_LEN = 205


def arrays(dtype, *, q_len=21, kv_len=KV_LEN, head_dim=12, value_dim=20, seed=0):
    random = np.random.default_rng(seed)
    shapes = (2, 4, q_len, head_dim), (2, 2, kv_len, head_dim), (2, 2, kv_len, value_dim)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def test_nan_in_a_value_of_vanishing_weight(dtype, target):
    """A visible key stays visible even if its weight underflows to zero."""
    query, key, value = arrays(dtype)
    bias = np.zeros((21, KV_LEN), dtype)
    bias[:, [2, 120]] = -1e4
    for where in (2, 120):
        bad = value.copy()
        bad[..., where, 3] = np.nan
        output = sdpa(query, key, bad, bias)
        assert np.isnan(output[..., 3]).all()
        assert np.isfinite(np.delete(output, 3, axis=-1)).all()


def test_scores_of_minus_infinity_are_not_a_mask(dtype, target):
    """If all visible scores are -inf by value, the row is NaN, as the formula says, and not
    zero."""
    query, key, value = (np.abs(x) for x in arrays(dtype, head_dim=1))
    output = sdpa(query, np.full_like(key, -np.inf), value)
    assert np.isnan(output).all()
    key[..., ::2, :] = -np.inf
    want = attention(query, key[..., 1::2, :], value[..., 1::2, :])
    output, weights = sdpa(query, key, value, return_weights=True)
    assert not weights[..., ::2].any()
    limit = error_limits.expected(query, key[..., 1::2, :], value[..., 1::2, :]).limit
    assert error(output, want.output) <= limit.output


def with_scores(scores, dtype):
    """Return one-column queries and keys whose products are `scores`, one row for all queries."""
    key = np.asarray(scores, dtype)[None, :, None]
    value = np.random.default_rng(0).standard_normal((1, key.shape[1], 5)).astype(dtype)
    return np.ones((1, 19, 1), dtype), key, value


def check(*arrays, **options):
    """Check the call with weights and the call without, which takes another code path."""
    want = error_limits.expected(*arrays, **options)
    output, weights, lse = sdpa(*arrays, **options, return_weights=True, return_lse=True)
    assert_matches(want, output=output, weights=weights, lse=lse)
    output, lse = sdpa(*arrays, **options, return_lse=True)
    assert_matches(want, output=output, lse=lse)


STEADY = np.arange(700.0)


@pytest.mark.parametrize(
    "scores",
    [
        0.01 * STEADY,
        0.3 * STEADY,
        20 * STEADY,
        -0.01 * STEADY,
        -0.3 * STEADY,
        5 * np.sin(STEADY),
        np.where(STEADY == 350, 40, 0),
        np.where(STEADY % 97 == 96, STEADY, 0),
        np.zeros(700),
        np.full(700, 30.0),
        -50 + 0.1 * STEADY,
        -1000 + 0.1 * STEADY,
        np.where(STEADY < 500, -1e30, 1.5),
        np.where(STEADY > 200, -1e30, 1.5),
        np.where(STEADY == 600, -2.0, -1e38),
    ],
    ids=lambda scores: f"{scores[0]:g}..{scores[350]:g}..{scores[-1]:g}",
)
def test_the_running_maximum(scores, dtype, target):
    """Maxima rise, fall, jump and stay, so that every rescaling rule is used, without a sink and
    with a sink far below, near and far above them."""
    query, key, value = with_scores(scores, dtype)
    top = dtype.type(max(scores))
    for sink in (None, top - 1000, top - 10, top, top + 10, top + 1000):
        options = {} if sink is None else {"sinks": np.array([sink], dtype)}
        check(query, key, value, **options)


@pytest.mark.parametrize(("cap", "slope"), [(0.5, 0.01), (20.0, 0.0), (20.0, -0.3), (300.0, 0.01)])
def test_the_running_maximum_of_capped_and_sloping_scores(slope, cap, dtype, target):
    """Slopes and caps move the maximum from key to key and from row to row."""
    options = {"softcap": cap, "alibi_slopes": np.array([slope], dtype), "query_offset": 300}
    for scores in (0.3 * STEADY, 5 * np.sin(STEADY), -50 + 0.1 * STEADY, np.full(700, 30.0)):
        check(*with_scores(scores, dtype), **options)


@pytest.mark.parametrize("size", [1e4, 1e10, 1e30, 1e38])
def test_huge_scores(size, dtype, target):
    """Scores are exact multiples of `size`: the largest takes all weight, and ties share it."""
    steps = np.arange(300) % 7 - 3
    query, key, value = with_scores(steps * dtype.type(size / 4), dtype)
    for sign in (1, -1):
        output, weights, lse = sdpa(query, sign * key, value, return_weights=True, return_lse=True)
        winners = np.flatnonzero(steps == 3 * sign)
        losers = np.setdiff1d(np.arange(300), winners)
        eps = np.finfo(dtype).eps
        assert not weights[..., losers].any()
        assert error(weights[..., winners], 1 / len(winners)) <= 4 * eps
        wanted = value[:, winners].astype(reference.wider(dtype)).mean(axis=1)
        # len(winners) additions and a division, in any order
        allowed = (len(winners) + 4) * eps / 2 * largest(value)
        assert error(output, wanted) <= allowed
        assert error(sdpa(query, sign * key, value), wanted) <= allowed
        assert error(lse / float(key.max()), 1) <= 4 * eps + np.log(len(winners)) / float(key.max())


@pytest.mark.parametrize("extra", [{}, {"return_weights": True}], ids=["fused", "weights"])
def test_a_mask_of_the_most_negative_number(extra, dtype, target):
    """This number is not -inf. A row full of it weights all keys equally; next to zeros it has no
    weight."""
    query, key, value = arrays(dtype)
    bias = np.zeros((21, KV_LEN), dtype)
    bias[4] = np.finfo(dtype).min
    bias[7, ::2] = np.finfo(dtype).min
    output = sdpa(query, key, value, bias, **extra)
    output = output[0] if extra else output
    assert np.isfinite(output).all()
    mean = value.astype(reference.wider(dtype)).mean(axis=-2)
    allowed = np.finfo(dtype).eps * KV_LEN / 2 * largest(value)
    assert error(output[:, :, 4], np.repeat(mean, 2, axis=1)) <= allowed
    want = error_limits.expected(query[..., 7:8, :], key[..., 1::2, :], value[..., 1::2, :])
    assert_matches(want, output=output[..., 7:8, :])


@pytest.mark.parametrize("q_len", [1, 40])
@pytest.mark.parametrize("rise", [0.0, 5.5, -5.5, 400.0])
def test_the_largest_values(rise, q_len, dtype, target):
    """Means are finite while values times visible keys times 256 are finite (docs/numerics.md),
    whether the larger scores come at the first key, or blocks and chunks later."""
    kv_len = 2000
    value = np.full((kv_len, 3), np.finfo(dtype).max / (256 * kv_len), dtype)
    query, key = np.ones((q_len, 1), dtype), np.zeros((kv_len, 1), dtype)
    key[200:] = rise  # beyond 8 in units of log2, the reference follows
    key[1700:] = 2 * rise
    output = sdpa(query, key, value, scale=1.0)
    # All values are equal, so their mean equals them, up to the rounding of two sums.
    limit = 2 * kv_len * np.finfo(dtype).eps
    assert np.allclose(output / value[0, 0], 1, rtol=limit, atol=0)


def test_subnormal_inputs(dtype, target):
    least = np.finfo(dtype).smallest_subnormal
    query, key, value = arrays(dtype)
    tiny = np.trunc(value * 4000) * least
    assert largest(tiny) < np.finfo(dtype).tiny
    want = error_limits.expected(query, key, tiny)
    assert want.exact.output.any()
    assert_matches(want, output=sdpa(query, key, tiny))
    assert want.limit.output < largest(want.exact.output), "zeros would pass"
    one = sdpa(query, key[..., :1, :], tiny[..., :1, :])
    wanted = np.repeat(tiny[..., :1, :], 2, axis=1)
    assert error(one, wanted) <= 2 * least
    query, key = query * least * 1000, key * least * 1000
    assert_matches(error_limits.expected(query, key, value), output=sdpa(query, key, value))


@pytest.mark.parametrize("value", [np.finfo(np.float64).min, -1e300, -1e39, 1e300])
def test_a_finite_float64_mask_hides_nothing_from_float32(value, target):
    """Only -inf hides. A number that float32 cannot hold is a bias, as far from zero as float32
    allows."""
    random = np.random.default_rng(0)
    query, key, value_ = (random.standard_normal((5, 4)).astype("f4") for _ in range(3))
    mask = np.zeros((5, 5))
    mask[0] = value
    mask[1, 2] = value
    output, weights, lse = regard.scaled_dot_product_attention(
        query, key, value_, mask, return_weights=True, return_lse=True
    )
    assert np.allclose(output[0], value_.mean(0), atol=4 * np.finfo("f4").eps)
    assert np.isfinite(lse).all()
    assert weights[1, 2] == (1 if value > 0 else 0)
    masked = regard.apply_mask(np.zeros((1, 1), np.float32), [[value]])
    assert masked[0, 0] == np.sign(value) * np.finfo(np.float32).max


def test_every_weight_of_a_row_that_sees_nan_is_nan(target):
    """A score that would raise the reference is next to the NaN that hides it."""
    query = np.ones((1, 1), np.float32)
    for scores in ([129 * np.log(2), 0, 0, np.nan], [1e3, np.nan], [np.nan, 1e30, 5]):
        key = np.array(scores, np.float32)[:, None]
        output, weights = regard.scaled_dot_product_attention(
            query, key, np.ones_like(key), scale=1.0, return_weights=True
        )
        assert np.isnan(output).all()
        assert np.isnan(weights).all()


def test_scores_of_minus_infinity_beside_a_sink(dtype, target):
    """If every visible score is -inf by value, the sink takes all weight. Without a sink, the row
    is NaN."""
    query, key, value = np.ones((2, 9, 1), dtype), np.ones((2, 30, 1), dtype), np.ones((2, 30, 3))
    key[...] = -np.inf
    value = value.astype(dtype)
    sinks = np.array([1.5, -np.inf], dtype)
    output, weights, lse = sdpa(
        query, key, value, sinks=sinks, return_weights=True, return_lse=True
    )
    assert not output[0].any()
    assert not weights[0].any()
    assert np.isclose(lse[0], 1.5, 1.5 * np.finfo(dtype).eps, 0).all()
    assert np.isnan(output[1]).all()
    assert np.isnan(weights[1]).all()
