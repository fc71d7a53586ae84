"""How far a computed result may be from the right one, and the checks that it is not farther."""

from functools import partial
from typing import NamedTuple

import numpy as np

from reference import (
    STORED,
    Result,
    Solved,
    arithmetic,
    attention,
    differences,
    error,
    largest,
    lay_out,
    result_type,
    solve,
    sum_of_seen,
    wider,
)


class Judged(NamedTuple):
    exact: np.ndarray
    limit: float  # the largest error allowed before the result is stored


class Expected(NamedTuple):
    exact: Result
    seen: np.ndarray
    limit: Result  # the largest error allowed in each part before it is stored
    dtype: np.dtype  # of output and weights
    arithmetic: np.dtype  # of lse too


def half_ulp(numbers, dtype):
    """Return half the distance between neighbors of `dtype` at positive numbers, including
    subnormals, or 0 for types that are stored as they are computed."""
    if dtype.name not in STORED:
        return np.zeros(np.shape(numbers))
    bits, lowest = STORED[dtype.name]
    _, above = np.frexp(np.asarray(numbers, np.float64))  # 2^(above - 1) <= number < 2^above
    return np.ldexp(0.5, np.maximum(above - 1, lowest) - bits)


def judge(function, problem, *arrays, **extra):
    """Return the result of a function for arrays and a problem's options, part by part, and the
    error allowed around it, for finite inputs.

    The limit is twice the error of the same formula in NumPy, in the precision of the arithmetic
    and with the output rounded as it is stored. Added are errors that are due to the form of the
    fused call and not to carelessness, because the naive result may be exact by luck (one key: its
    weight is 1): what rounding may do to sums of magnitudes (see `Magnitudes`). Below the normal
    range every term of a sum may be lost.

    Slopes, sinks and a float mask are read in the precision of the arithmetic.
    """
    dtype = result_type(*problem.arrays)
    inner = arithmetic(dtype)
    options = _as_read(problem.options | extra, inner)
    exact = function(*arrays, **options, precision=wider(dtype))
    plain = function(*arrays, **options, precision=inner.type, stored=dtype)
    bound = function(*arrays, **options, change=partial(magnitudes, float(np.finfo(inner).eps)))
    least = float(np.finfo(inner).tiny) * (problem.query.size + problem.key.size)
    parts = zip(exact, plain, bound, strict=True)
    judged = (None if e is None else Judged(e, _limit(e, p, b) + least) for e, p, b in parts)
    return type(exact)(*judged)


def _limit(exact, plain, bound):
    return 2 * error(plain, exact) + largest(bound)


def _as_read(options, inner):
    """Return options with arrays in the type in which attention reads them."""
    options, mask = dict(options), options.get("mask")
    for name in options.keys() & {"alibi_slopes", "distance_bias", "sinks"}:
        options[name] = np.asarray(options[name]).astype(inner)
    if mask is not None:
        parts = mask if isinstance(mask, tuple) else (mask,)
        parts = tuple(part if part.dtype == bool else part.astype(inner) for part in parts)
        options["mask"] = parts if isinstance(mask, tuple) else parts[0]
    return options


def expected(query, key, value, mask=None, **options):
    """Return the oracle's result and the error allowed around it, for finite inputs (see `judge`
    and `_bound`). Below the normal range each of kv_len terms may lose one smallest subnormal.

    Results stored in 16 bits are rounded once more, by half an ulp: `assert_matches` adds it
    element by element.
    """
    arrays, dtype = (query, key, value), result_type(query, key, value)
    inner = arithmetic(dtype)
    options = _as_read(options | {"mask": mask}, inner)
    exact = attention(*arrays, **options, precision=wider(dtype))
    plain = attention(*arrays, **options, precision=inner.type)
    bound = _bound(*arrays, **options, eps=float(np.finfo(inner).eps))
    least = float(np.finfo(inner).smallest_subnormal) * (np.shape(key)[-2] + 1)
    limit = Result(*(_limit(*parts) + least for parts in zip(exact, plain, bound, strict=True)))
    seen = lay_out(*arrays, **options, precision=np.float64).seen
    return Expected(exact, seen.reshape(exact.weights.shape), limit, dtype, inner)


def _bound(*arrays, eps, **options):
    """Return how far rounding may move the results of attention.

    If a row's scores move by at most m, its weights move by 2m of themselves, since the scores
    enter the numerator and the denominator, and its lse moves by m. exp, the division and the final
    rounding are worth 4 eps, and a block's sum of tiles, in which equal numbers round in one
    direction, 2 eps.
    """
    s = solve(*arrays, **options, is_from_lse=False)
    moved = movement(s.laid, s.weights, eps)
    weights = (6 * eps + 2 * moved)[..., None] * s.weights * s.factors
    output = sum_of_seen(s.seen, weights, np.abs(s.laid.value))
    lse = s.lse[..., 0]
    lse = eps * (4 + np.where(np.isfinite(lse), np.abs(lse), 0)) + moved
    return Result(*map(s.shaped, (output, weights, lse)))


class Magnitudes(Solved):
    """A forward pass without signs, and with a plus for every minus. The contribution of a row to a
    sum counts by the share of it that rounding may move. The same formulas then bound the errors of
    any program."""

    less = np.add
    is_magnitude = True

    def read(self, array, columns=1):
        return np.abs(super().read(array, columns))

    def read_like_inputs(self, query, key, value):
        return map(np.abs, super().read_like_inputs(query, key, value))


def magnitudes(eps, solved):
    """Return the magnitudes of a forward pass, judged in arithmetic with this eps.

    The share of each row's weights that rounding may move is twice the movement of the scores (see
    `movement`), since lse moves with them; 2 eps of lse, which is a float, and from which the
    scores are subtracted; and 8 eps for exp, the products, differences and sums.

    The derivatives of the cap move with its argument (see `score_movement`), and lose 4 eps in 1 -
    tanh^2.
    """
    laid, precision = solved.laid, solved.weights.dtype.type
    moved = movement(laid, solved.weights, eps)[..., None]
    share = 2 * moved + eps * (8 + 2 * np.nan_to_num(np.abs(solved.lse), posinf=0))
    query, key, value = (np.abs(x) for x in (laid.query, laid.key, laid.value))
    factor, slope, bend = np.abs(laid.factor), np.abs(solved.slope), np.abs(solved.bend)
    if np.isfinite(laid.softcap).any():
        moved = score_movement(laid, eps)
        turn = (2 * slope**2 + 4 * (1 - slope) * slope) / laid.softcap**2
        slope = slope + (bend * moved + 4 * eps) / share
        bend = bend + (turn * moved + 4 * eps / laid.softcap) / share
    laid = laid._replace(query=query, key=key, value=value, factor=factor.astype(precision))
    output = sum_of_seen(laid.seen, solved.weights * solved.factors, value)
    parts = laid, solved.weights, solved.factors, slope, bend, output, np.ones_like(solved.lse)
    return Magnitudes(*parts, solved.sink_weight, solved.is_flat, share)


def score_movement(laid, eps):
    """Return how far another order of a product's terms may move each score, before the cap: a
    score moves by at most e = 1.5 eps |scale| sum |q||k|, unless NumPy computes all scores
    exactly."""
    keys = laid.key.swapaxes(-1, -2)
    dtype = np.dtype(np.float32 if eps > 1e-10 else np.float64)

    def scores_in(dtype):
        return laid.query.astype(dtype) @ keys.astype(dtype) * laid.factor.astype(dtype)

    if (scores_in(dtype) == scores_in(wider(dtype))).all():
        return np.zeros(laid.seen.shape)
    return 1.5 * eps * np.abs(laid.factor) * (np.abs(laid.query) @ np.abs(keys))


def movement(laid, weights, eps):
    """Return how far rounding may move the scores of each row that have weight, among its keys.

    - The cap takes x +- e to somewhere between cap(x - e) and cap(x + e), so x hardly moves if it
      saturates. tanh is within 2 eps of itself, its factor is rounded, and so is the product: 3 eps
      of the capped score in addition.
    - A mask and slope |p - j| are added to each other before they are added to x: eps / 2 of each.
    """
    with np.errstate(all="ignore"):
        moved = score_movement(laid, eps)
        if np.isfinite(laid.softcap).any():
            scores = laid.factor * (laid.query @ laid.key.swapaxes(-1, -2))
            capped = laid.cap(scores)
            up, down = laid.cap(scores + moved) - capped, capped - laid.cap(scores - moved)
            moved = np.maximum(up, down) + 3 * eps * np.abs(capped)
        moved = moved + eps / 2 * (np.abs(laid.alibi) + np.abs(laid.bias))
        has_weight = weights > eps**2 * weights.max(axis=-1, keepdims=True, initial=0)
        return np.max(moved, axis=-1, where=has_weight, initial=0)


def assert_within(judged, actual, dtype, name=""):
    """Check the shape and type, and that the error is within the limit and the rounding to the
    type."""
    exact, limit = judged
    rounding = half_ulp(np.abs(exact) + limit, dtype)
    if dtype.name not in STORED:
        rounding = np.abs(exact) * np.finfo(dtype).eps / 2
    elif dtype.name == "bfloat16" and exact.dtype == np.longdouble:
        rounding = rounding + np.abs(exact) * 2.0**-24  # ml_dtypes casts float64 by way of float32
    _assert_close(actual, exact, limit, rounding, dtype, name)


def _assert_close(actual, exact, limit, rounding, dtype, name):
    assert type(actual) is np.ndarray, name
    assert actual.dtype == dtype, name
    assert actual.shape == exact.shape, name
    off = np.max(differences(actual.astype(exact.dtype), exact) - rounding, initial=0)
    assert off <= limit, f"{name}: error {off:.3g}, allowed {limit:.3g} of {largest(exact):.3g}"


def assert_matches(want, **results):
    """Check output, weights and lse: shape and type, that hidden elements are exactly hidden, and
    that the rest is within limits."""
    blind = ~want.seen.any(axis=-1)
    for name, actual in results.items():
        exact, limit = getattr(want.exact, name), getattr(want.limit, name)
        dtype = want.arithmetic if name == "lse" else want.dtype
        _assert_close(actual, exact, limit, half_ulp(np.abs(exact) + limit, dtype), dtype, name)
        if name == "weights":
            assert not actual[~want.seen].any(), "a hidden key has weight"
        elif name == "output":
            assert not actual[blind].any(), "a fully masked row has output"
        else:
            alike = np.isclose(actual[blind], exact[blind], rtol=np.finfo(dtype).eps, atol=0)
            assert alike.all(), "lse of a fully masked row"
