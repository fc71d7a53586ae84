"""What attention must give, and how far a result may be from it.

`attention` is the oracle: wider than the arrays, one query row at a time, with hidden keys and
values selected away before any arithmetic, so that they cannot matter. `naive` is the same formula
as NumPy users write it, in the precision of the arrays: the yardstick for errors.
"""

from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray


class Expected(NamedTuple):
    exact: Result
    seen: np.ndarray
    limit: Result  # the largest error allowed in each part
    dtype: np.dtype


class Laid(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    bias: np.ndarray
    factor: float


def lay_out(query, key, value, mask, is_causal, query_offset, scale, precision):
    """Every axis present and of full length: one key head per query head, one batch."""
    query, key, value = (np.asarray(x).astype(precision) for x in (query, key, value))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    group = query.shape[-3] // key.shape[-3] if key.shape[-3] else 1
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    query, key, value = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (query, key, value))
    shape = (*query.shape[:-1], key.shape[-2])
    seen, bias = np.ones(shape, bool), np.zeros(shape, precision)
    if mask is not None and mask.dtype == bool:
        seen &= mask
    elif mask is not None:
        seen &= mask != -np.inf
        bias += mask.astype(precision)
    if is_causal:
        offset = np.broadcast_to(query_offset, batch)[..., None, None, None]
        seen &= np.arange(shape[-1]) <= np.arange(shape[-2])[:, None] + offset
    factor = 1 / np.sqrt(precision(query.shape[-1])) if scale is None else precision(scale)
    return Laid(query, key, value, seen, bias, factor)


def attention(
    query,
    key,
    value,
    mask=None,
    *,
    is_causal=False,
    query_offset=0,
    scale=None,
    precision=np.float64,
):
    laid = lay_out(query, key, value, mask, is_causal, query_offset, scale, precision)
    output = np.zeros((*laid.query.shape[:-1], laid.value.shape[-1]), precision)
    weights = np.zeros(laid.seen.shape, precision)
    lse = np.full(laid.seen.shape[:-1], -np.inf, precision)
    with np.errstate(all="ignore"):
        for row in np.ndindex(lse.shape):
            seen, head = laid.seen[row], row[:-1]
            if seen.any():
                scores = laid.factor * (laid.key[head][seen] @ laid.query[row])
                scores += laid.bias[row][seen]
                terms = np.exp(scores - scores.max())
                weights[row][seen] = terms / terms.sum()
                output[row] = weights[row][seen] @ laid.value[head][seen]
                lse[row] = scores.max() + np.log(terms.sum())
    flat = all(np.ndim(x) == 2 for x in (query, key, value))
    return Result(*(x[0] if flat else x for x in (output, weights, lse)))


def naive(
    query, key, value, mask=None, *, is_causal=False, query_offset=0, scale=None, precision=None
):
    precision = precision or np.result_type(query, key, value).type
    laid = lay_out(query, key, value, mask, is_causal, query_offset, scale, precision)
    with np.errstate(all="ignore"):
        scores = laid.query @ laid.key.swapaxes(-1, -2) * laid.factor + laid.bias
        scores = np.where(laid.seen, scores, precision(-np.inf))
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        top[~laid.seen.any(axis=-1)] = 0
        terms = np.exp(scores - top)
        total = terms.sum(axis=-1, keepdims=True)
        weights = terms / np.where(laid.seen.any(axis=-1, keepdims=True), total, 1)
        result = Result(weights @ laid.value, weights, (top + np.log(total))[..., 0])
    flat = all(np.ndim(x) == 2 for x in (query, key, value))
    return Result(*(x[0] if flat else x for x in result))


def wider(dtype):
    """The oracle must be more precise than what it judges."""
    return np.float64 if dtype == np.float32 else np.longdouble


def largest(array):
    return float(np.max(np.abs(array), initial=0))


def error(actual, exact):
    """The largest difference; equal infinities differ by nothing."""
    with np.errstate(invalid="ignore"):
        difference = np.where(actual == exact, 0, actual - exact)
    return largest(difference)


def expected(query, key, value, mask=None, **options):
    """The oracle's answer and the error allowed around it, for finite inputs.

    Allowed: twice the error of the naive formula, plus what is due to the form of the fused one and
    not to carelessness, because the naive result may be exact by luck (one key: its weight is 1).
    Scale and log2(e) are rounded into the query once, and log2(e) itself is rounded: a score moves
    by at most 1.5 eps A with A = |scale| sum |q||k| + |mask|, over keys that have weight. That
    moves a weight by 3 eps A of itself, since it enters above and below the fraction; exp2, the
    division and the final rounding are worth 4 eps. Below the normal range each of kv_len terms may
    lose one smallest subnormal.
    """
    dtype = np.result_type(query, key, value)
    wide = wider(dtype)
    exact = attention(query, key, value, mask, **options, precision=wide)
    plain = naive(query, key, value, mask, **options, precision=dtype.type)
    settings = {"is_causal": False, "query_offset": 0, "scale": None} | options
    laid = lay_out(query, key, value, mask, *settings.values(), np.float64)
    info = np.finfo(dtype)
    eps, least = float(info.eps), float(info.smallest_subnormal) * (laid.seen.shape[-1] + 1)
    magnitudes = abs(laid.factor) * (np.abs(laid.query) @ np.abs(laid.key).swapaxes(-1, -2))
    magnitudes += np.where(laid.seen, np.abs(laid.bias), 0)
    spread = largest(magnitudes[exact.weights.reshape(laid.seen.shape) > eps**2])
    relative = eps * (4 + 3 * spread)
    floor = Result(
        relative * largest(value) + least,
        relative + least,
        eps * (4 + 2 * spread + largest(exact.lse[np.isfinite(exact.lse)])),
    )
    limit = (2 * error(p, e) + f for p, e, f in zip(plain, exact, floor, strict=True))
    seen = laid.seen.reshape(exact.weights.shape)
    return Expected(exact, seen, Result(*limit), dtype)


def assert_matches(want, *, output=None, weights=None, lse=None):
    """Right shape and type, hidden things exactly hidden, the rest within the limits."""
    parts = {"output": output, "weights": weights, "lse": lse}
    blind = ~want.seen.any(axis=-1)
    for name, actual in parts.items():
        if actual is None:
            continue
        exact, limit = getattr(want.exact, name), getattr(want.limit, name)
        assert type(actual) is np.ndarray, name
        assert actual.dtype == want.dtype, name
        assert actual.shape == exact.shape, name
        off = error(actual, exact)
        assert off <= limit, f"{name}: error {off:.3g}, allowed {limit:.3g}"
        if name == "weights":
            assert not actual[~want.seen].any(), "a hidden key has weight"
        else:
            assert np.array_equal(actual[blind], exact[blind]), f"{name} of a row without keys"


def assert_same_bits(actual, wanted):
    """Equal to the last bit, the sign of zero and NaN included; tuples part by part."""
    if isinstance(wanted, tuple):
        assert len(actual) == len(wanted)
        for a, w in zip(actual, wanted, strict=True):
            assert_same_bits(a, w)
        return
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.dtype == wanted.dtype
    assert actual.shape == wanted.shape
    if actual.tobytes() != wanted.tobytes():
        raw = f"u{actual.itemsize}"
        actual, wanted = np.ascontiguousarray(actual), np.ascontiguousarray(wanted)
        different = np.argwhere(actual.view(raw) != wanted.view(raw))
        first = tuple(int(i) for i in different[0])
        raise AssertionError(
            f"{len(different)} of {actual.size} elements differ, "
            f"first at {first}: {actual[first]!r} and {wanted[first]!r}"
        )
