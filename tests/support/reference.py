"""The right results of attention, and how far a computed result may be from them.

`attention` is the oracle: wider than the arrays, one query row at a time, with hidden keys and
values removed before any arithmetic, so that they cannot matter. `naive` is the same formula as
NumPy users write it, in the precision in which the arrays are computed: the yardstick for errors.

float16 and bfloat16 are storage types: their numbers are computed with in float32, and the results
are rounded to them once.
"""

from typing import NamedTuple

import numpy as np

# Bits after the leading one, and the exponent of the smallest normal number.
STORED = {"float16": (10, -14), "bfloat16": (7, -126)}


class Result(NamedTuple):
    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray


class Expected(NamedTuple):
    exact: Result
    seen: np.ndarray
    limit: Result  # the largest error allowed in each part before it is stored
    dtype: np.dtype  # of output and weights
    arithmetic: np.dtype  # of lse too


class Laid(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    alibi: np.ndarray | float  # subtracted after the cap
    bias: np.ndarray  # then added, 0 if hidden
    factor: np.ndarray  # (batch..., heads, 1, 1), like softcap, which is inf for no cap
    softcap: np.ndarray
    sinks: np.ndarray  # a logit for each head, -inf for none
    columns: np.ndarray | None  # of distance_bias, for every pair

    def cap(self, scores, head=...):
        """Return c tanh(score / c)."""
        softcap = self.softcap[head]
        if np.isinf(softcap).all():
            return scores  # most calls, a hundred thousand of them
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(softcap), scores, softcap * np.tanh(scores / softcap))


def lay_out(
    query,
    key,
    value,
    mask=None,
    *,
    is_causal=False,
    query_offset=0,
    window=None,
    key_lengths=None,
    left_padding=None,
    scale=None,
    softcap=None,
    alibi_slopes=None,
    distance_bias=None,
    sinks=None,
    precision,
):
    """Lay out arrays with every axis present and of full length: one key head per query head, one
    batch.

    Query i is at position p = i + offset. Key j is visible iff the mask (True, or anything but
    -inf), causality (j <= p), the window (p - left <= j <= p + right), the length (j < length) and
    the padding (j >= padding) all allow it.
    """
    query, key, value = (np.asarray(x).astype(precision) for x in (query, key, value))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    group = query.shape[-3] // key.shape[-3] if key.shape[-3] else 1
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    query, key, value = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (query, key, value))
    shape = (*query.shape[:-1], key.shape[-2])

    def per_batch(numbers):
        return np.broadcast_to(np.asarray(numbers, np.int64), batch)[..., None, None, None]

    seen, bias = np.ones(shape, bool), np.zeros(shape, precision)
    for part in mask if isinstance(mask, tuple) else (mask,):
        if part is not None and part.dtype == bool:
            seen &= part
        elif part is not None:
            bias += part.astype(precision)
            seen &= part != -np.inf
    # The distance of key j after query i: negative for keys of the past.
    ahead = np.arange(shape[-1]) - np.arange(shape[-2])[:, None] - per_batch(query_offset)
    left, right = (None if side is None else int(side) for side in window or (None, None))
    if is_causal:
        seen &= ahead <= 0
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    if key_lengths is not None:
        seen &= np.arange(shape[-1]) < per_batch(key_lengths)
    if left_padding is not None:
        seen &= np.arange(shape[-1]) >= per_batch(left_padding)
    columns = None
    if distance_bias is not None:
        table = np.asarray(distance_bias)
        reach = table.shape[-1] // 2
        columns = np.broadcast_to(np.clip(ahead + reach, 0, 2 * reach), shape)
        table = np.broadcast_to(table, (*shape[:-2], table.shape[-1]))
        added = np.take_along_axis(table[..., None, :], columns, axis=-1).astype(precision)
        seen &= added != -np.inf
        bias = np.where(seen, bias + added, 0)
    bias[~seen] = 0
    alibi = 0.0
    if alibi_slopes is not None:
        alibi = np.asarray(alibi_slopes).astype(precision)[..., None, None] * np.abs(ahead)
    alibi = np.broadcast_to(np.asarray(alibi, precision), shape)
    if sinks is None:
        sinks = np.full(shape[-3], -np.inf)

    def per_head(numbers):
        numbers = np.broadcast_to(np.asarray(numbers).astype(precision), shape[:-2])
        return numbers[..., None, None]

    factor = per_head(1 / np.sqrt(precision(query.shape[-1])) if scale is None else scale)
    cap = per_head(np.inf if softcap is None else softcap)
    sinks = np.asarray(sinks).astype(precision)
    return Laid(query, key, value, seen, alibi, bias, factor, cap, sinks, columns)


def attention(query, key, value, mask=None, *, precision=np.float64, **options):
    """Compute row by row, over what the row sees; a sink is one more term in the sum, without a
    value."""
    laid = lay_out(query, key, value, mask, **options, precision=precision)
    output = np.zeros((*laid.query.shape[:-1], laid.value.shape[-1]), precision)
    weights = np.zeros(laid.seen.shape, precision)
    lse = np.empty(laid.seen.shape[:-1], precision)
    with np.errstate(all="ignore"):
        for row in np.ndindex(lse.shape):
            seen, head, sink = laid.seen[row], row[:-1], laid.sinks[row[-2]]
            if not seen.any():
                lse[row] = sink
                continue
            products = laid.key[head][seen] @ laid.query[row]
            scores = laid.cap(laid.factor[head][0, 0] * products, (*head, 0, 0))
            scores = scores - laid.alibi[row][seen] + laid.bias[row][seen]
            top = np.maximum(scores.max(), sink)
            terms = np.exp(scores - top)
            total = terms.sum() + np.exp(sink - top)
            weights[row][seen] = terms / total
            output[row] = weights[row][seen] @ laid.value[head][seen]
            lse[row] = top + np.log(total)
    flat = all(np.ndim(x) == 2 for x in (query, key, value))
    return Result(*(x[0] if flat else x for x in (output, weights, lse)))


def naive(query, key, value, mask=None, *, precision=None, **options):
    """Compute the formula on whole arrays, in the precision that regard uses."""
    precision = precision or arithmetic(result_type(query, key, value)).type
    laid = lay_out(query, key, value, mask, **options, precision=precision)
    with np.errstate(all="ignore"):
        scores = laid.cap(laid.query @ laid.key.swapaxes(-1, -2) * laid.factor)
        scores = scores - laid.alibi + laid.bias
        scores = np.where(laid.seen, scores, precision(-np.inf))
        sink = np.broadcast_to(laid.sinks[:, None, None], (*laid.seen.shape[:-1], 1))
        top = np.maximum(np.max(scores, axis=-1, keepdims=True, initial=-np.inf), sink)
        empty = ~laid.seen.any(axis=-1, keepdims=True) & (sink == -np.inf)
        top[empty] = 0
        terms = np.exp(scores - top)
        total = terms.sum(axis=-1, keepdims=True) + np.exp(sink - top)
        weights = terms / np.where(empty, 1, total)
        result = Result(weights @ laid.value, weights, (top + np.log(total))[..., 0])
    flat = all(np.ndim(x) == 2 for x in (query, key, value))
    return Result(*(x[0] if flat else x for x in result))


def result_type(*arrays):
    """Return NumPy's result type, or float32 for the two 16-bit types together, for which NumPy has
    none."""
    dtypes = {np.asarray(x).dtype for x in arrays}
    if {d.name for d in dtypes} >= set(STORED):
        dtypes = {np.dtype(np.float32), *(d for d in dtypes if d.name not in STORED)}
    return np.result_type(*dtypes)


def arithmetic(dtype):
    """Return the type in which arrays of this type are computed."""
    return np.dtype(np.float32 if dtype.name in STORED else dtype)


def wider(dtype):
    """Return a type for the oracle, which must be more precise than the results that it judges."""
    return np.longdouble if dtype == np.float64 else np.float64


def largest(array):
    return float(np.max(np.abs(array), initial=0))


def error(actual, exact):
    """Return the largest difference; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        difference = np.where(actual == exact, 0, actual - exact)
    return largest(difference)


def half_ulp(numbers, dtype):
    """Return half the distance between neighbors of `dtype` at positive numbers, including
    subnormals, or 0 for types that are stored as they are computed."""
    if dtype.name not in STORED:
        return np.zeros(np.shape(numbers))
    bits, lowest = STORED[dtype.name]
    _, above = np.frexp(np.asarray(numbers, np.float64))  # 2^(above - 1) <= number < 2^above
    return np.ldexp(0.5, np.maximum(above - 1, lowest) - bits)


def expected(query, key, value, mask=None, **options):
    """Return the oracle's result and the error allowed around it, for finite inputs.

    The limit is twice the error of the naive formula. Added are errors that are due to the form of
    the fused call and not to carelessness, because the naive result may be exact by luck (one key:
    its weight is 1). A score x moves by at most e = 1.5 eps |scale| sum |q||k| because its products
    are summed in another order, unless NumPy computes all scores exactly. Everything is over keys
    that have weight.

    - The cap takes x +- e to somewhere between cap(x - e) and cap(x + e), so x hardly moves if it
      saturates. tanh is within 2 eps of itself, its factor is rounded, and so is the product: 3 eps
      of the capped score in addition.
    - A mask and slope |p - j| are added to each other before they are added to x: eps / 2 of each.

    If a row's scores move by at most m, its weights move by 2m of themselves, since the scores
    enter the numerator and the denominator, and its lse moves by m. exp, the division and the
    final rounding are worth 4 eps, and a block's sum of tiles, in which equal numbers round in one
    direction, 2 eps. Below the normal range each of kv_len terms may lose one
    smallest subnormal.

    Results stored in 16 bits are rounded once more, by half an ulp: `assert_matches` adds it
    element by element. Slopes, sinks and a float mask are read in the precision of the arithmetic.
    """
    dtype = result_type(query, key, value)
    inner = arithmetic(dtype)
    wide = wider(dtype)
    if isinstance(mask, tuple):
        mask = mask[0], mask[1].astype(inner)
    elif mask is not None and mask.dtype != bool:
        mask = mask.astype(inner)
    for name in options.keys() & {"alibi_slopes", "distance_bias", "sinks"}:
        options[name] = np.asarray(options[name]).astype(inner)
    exact = attention(query, key, value, mask, **options, precision=wide)
    plain = naive(query, key, value, mask, **options, precision=inner.type)
    errors = [error(p, e) for p, e in zip(plain, exact, strict=True)]
    laid = lay_out(query, key, value, mask, **options, precision=np.float64)
    info = np.finfo(inner)
    eps, least = float(info.eps), float(info.smallest_subnormal) * (laid.seen.shape[-1] + 1)
    weights, lse = (np.asarray(x, np.float64) for x in (exact.weights, exact.lse))
    weights, lse = weights.reshape(laid.seen.shape), lse.reshape(laid.seen.shape[:-1])
    moved = movement(laid, weights, eps)
    relative = (6 * eps + 2 * moved)[..., None]
    floor = Result(
        largest(relative * (weights @ np.abs(laid.value))) + least,
        largest(relative * weights) + least,
        largest(eps * (4 + np.where(np.isfinite(lse), np.abs(lse), 0)) + moved),
    )
    limit = (2 * e + f for e, f in zip(errors, floor, strict=True))
    seen = laid.seen.reshape(exact.weights.shape)
    return Expected(exact, seen, Result(*limit), dtype, inner)


def score_movement(laid, eps):
    """Return how far another order of a product's terms may move each score, before the cap."""
    keys = laid.key.swapaxes(-1, -2)
    dtype = np.dtype(np.float32 if eps > 1e-10 else np.float64)

    def scores_in(dtype):
        return laid.query.astype(dtype) @ keys.astype(dtype) * laid.factor.astype(dtype)

    if (scores_in(dtype) == scores_in(wider(dtype))).all():
        return np.zeros(laid.seen.shape)
    return 1.5 * eps * np.abs(laid.factor) * (np.abs(laid.query) @ np.abs(keys))


def movement(laid, weights, eps):
    """Return how far rounding may move the scores of each row that have weight, among its keys."""
    moved = score_movement(laid, eps)
    if np.isfinite(laid.softcap).any():
        scores = laid.factor * (laid.query @ laid.key.swapaxes(-1, -2))
        capped = laid.cap(scores)
        up, down = laid.cap(scores + moved) - capped, capped - laid.cap(scores - moved)
        moved = np.maximum(up, down) + 3 * eps * np.abs(capped)
    moved = moved + eps / 2 * (np.abs(laid.alibi) + np.abs(laid.bias))
    has_weight = weights > eps**2 * weights.max(axis=-1, keepdims=True, initial=0)
    return np.max(moved, axis=-1, where=has_weight, initial=0)


def assert_matches(want, *, output=None, weights=None, lse=None):
    """Check shape and type, that hidden elements are exactly hidden, and that the rest is within
    limits."""
    parts = {"output": output, "weights": weights, "lse": lse}
    blind = ~want.seen.any(axis=-1)
    for name, actual in parts.items():
        if actual is None:
            continue
        exact, limit = getattr(want.exact, name), getattr(want.limit, name)
        dtype = want.arithmetic if name == "lse" else want.dtype
        assert type(actual) is np.ndarray, name
        assert actual.dtype == dtype, name
        assert actual.shape == exact.shape, name
        actual = actual.astype(exact.dtype)
        with np.errstate(invalid="ignore"):
            off = np.where(actual == exact, 0, np.abs(actual - exact))
        off = np.max(off - half_ulp(np.abs(exact) + limit, dtype), initial=0)
        assert off <= limit, f"{name}: error {off:.3g}, allowed {limit:.3g}"
        if name == "weights":
            assert not actual[~want.seen].any(), "a hidden key has weight"
        elif name == "output":
            assert not actual[blind].any(), "a fully masked row has output"
        else:
            sinks = exact[blind]
            alike = np.isclose(actual[blind], sinks, rtol=np.finfo(dtype).eps, atol=0)
            assert alike.all(), "lse of a fully masked row"


def assert_same_bits(actual, wanted):
    """Check equality to the last bit, including the sign of zero and NaN; tuples part by part."""
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
