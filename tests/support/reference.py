"""The right results of attention.

`attention` is the oracle, if it computes in a type that is wider than the arrays. In their own type
it is the formula as NumPy users write it, on whole arrays: the yardstick for errors (see
`error_limits`). Everything is laid out in full first (one key head for each query head, one batch,
all scores). Hidden elements are removed by selection: they may be NaN and change nothing.

float16 and bfloat16 are storage types: their numbers are computed with in float32, and the results
are rounded to them once.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from philox import dropout_factors

# Bits after the leading one, and the exponent of the smallest normal number.
STORED = {"float16": (10, -14), "bfloat16": (7, -126)}
STEP = 1e-40  # of complex numbers, for derivatives


class Result(NamedTuple):
    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray


class Laid(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    seen: np.ndarray
    distance: np.ndarray  # |p - j|
    alibi: np.ndarray | float  # subtracted after the cap
    bias: np.ndarray  # then added, 0 if hidden
    factor: np.ndarray  # (batch..., heads, 1, 1), like softcap, which is inf for no cap
    softcap: np.ndarray
    sinks: np.ndarray  # a logit for each head, -inf for none, (heads, 1, 1)
    columns: np.ndarray | None  # of distance_bias, for every pair

    def cap(self, scores):
        """Return c tanh(score / c)."""
        return np.where(
            np.isinf(self.softcap), scores, self.softcap * np.tanh(scores / self.softcap)
        )


def offset_of(query, key, options):
    """Return the query_offset of a call, with "end" replaced by numbers."""
    offset = options.get("query_offset", 0)
    if not isinstance(offset, str):
        return offset
    lengths = options.get("key_lengths")
    return np.asarray(key.shape[-2] if lengths is None else lengths) - query.shape[-2]


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
    """Lay out arrays with every axis present and of full length.

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

    def per_head(numbers):
        numbers = np.broadcast_to(np.asarray(numbers).astype(precision), shape[:-2])
        return numbers[..., None, None]

    seen, bias = np.ones(shape, bool), np.zeros(shape, precision)
    for part in mask if isinstance(mask, tuple) else (mask,):
        if part is not None and part.dtype == bool:
            seen &= part
        elif part is not None:
            bias += part.astype(precision)
            seen &= part.real != -np.inf
    # The distance of key j after query i: negative for keys of the past.
    offset = offset_of(query, key, {"query_offset": query_offset, "key_lengths": key_lengths})
    keys = np.arange(shape[-1])
    ahead = keys - np.arange(shape[-2])[:, None] - per_batch(offset)
    left, right = (None if side is None else int(side) for side in window or (None, None))
    if is_causal:
        seen &= ahead <= 0
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    if key_lengths is not None:
        seen &= keys < per_batch(key_lengths)
    if left_padding is not None:
        seen &= keys >= per_batch(left_padding)
    columns = None
    if distance_bias is not None:
        table = np.asarray(distance_bias)
        reach = table.shape[-1] // 2
        columns = np.broadcast_to(np.clip(ahead + reach, 0, 2 * reach), shape)
        table = np.broadcast_to(table, (*shape[:-2], table.shape[-1]))
        added = np.take_along_axis(table[..., None, :], columns, axis=-1).astype(precision)
        seen &= added.real != -np.inf
        bias = np.where(seen, bias + added, 0)
    bias[~seen] = 0
    distance = np.broadcast_to(np.abs(ahead).astype(precision), shape)
    factor = per_head(1 / np.sqrt(precision(query.shape[-1])) if scale is None else scale)
    cap = per_head(np.inf if softcap is None else softcap)
    alibi = per_head(0 if alibi_slopes is None else alibi_slopes) * distance
    sinks = np.full(shape[-3], -np.inf) if sinks is None else np.asarray(sinks)
    sinks = sinks.astype(precision)[:, None, None]
    return Laid(query, key, value, seen, distance, alibi, bias, factor, cap, sinks, columns)


@dataclasses.dataclass(frozen=True)
class Solved:
    """A forward pass with every score. Arrays of rows have shape (..., q_len, 1).

    `less` subtracts, and `share` is the part of a weight that counts in a sum (see
    `error_limits.Magnitudes`).
    """

    laid: Laid
    weights: np.ndarray
    factors: np.ndarray  # of dropout
    slope: np.ndarray  # the first derivative of the cap
    bend: np.ndarray  # the second one
    output: np.ndarray
    lse: np.ndarray
    sink_weight: np.ndarray
    is_flat: bool
    share: np.ndarray | float = 1.0
    less = np.subtract
    is_magnitude = False

    @property
    def seen(self):
        return self.laid.seen

    @property
    def sees_any(self):
        return self.seen.any(axis=-1, keepdims=True)

    def read(self, array, columns=1):
        """Return an array with a row for each query: the gradient of the output, or of lse."""
        array = np.asarray(array).astype(self.weights.dtype)
        return array.reshape((*self.seen.shape[:-1], columns))

    def read_like_inputs(self, query, key, value):
        """Return arrays with the shapes of the inputs, laid out like the inputs."""
        return lay_out(query, key, value, precision=self.weights.dtype.type)[:3]

    def over_keys(self, a, b):
        return sum_of_seen(self.seen, a * self.share, b)

    def over_queries(self, a, b):
        return sum_of_seen(*(x.swapaxes(-1, -2) for x in (self.seen, a * self.share)), b)

    def row_sum(self, scores):
        return np.sum(scores, axis=-1, keepdims=True, where=self.seen)

    def shaped(self, rows):
        """Return rows as the caller gets them: without a heads axis if no input had one."""
        return rows[0] if self.is_flat else rows


def sum_of_seen(seen, a, b):
    """Return sum_j a[i, j] b[j] over the j that i sees: the others are not read."""
    a = np.where(seen, a, 0)
    if np.isfinite(b).all():
        return a @ b
    return np.where(seen[..., None], a[..., None] * b[..., None, :, :], 0).sum(axis=-2)


def solve(
    query,
    key,
    value,
    mask=None,
    *,
    dropout_p=0.0,
    dropout_seed=None,
    dropout_origin=(0, 0, 0),
    entries=None,
    precision=np.float64,
    stored=None,
    change=lambda solved: solved,
    is_from_lse=True,
    **options,
):
    """Compute the forward pass in this precision, with the output rounded to the type `stored`, if
    any, and return what `change` makes of it. A sink is one more term in the sum of a row, without
    a value. Gradients are computed with the weights that follow from lse, which is rounded.

    `entries` are the numbers by which dropout identifies the batch entries. Complex numbers are
    allowed, for derivatives (see `derivatives`).
    """
    laid = lay_out(query, key, value, mask, **options, precision=precision)
    seen, sinks = laid.seen, laid.sinks
    with np.errstate(all="ignore"):
        scores = laid.factor * (laid.query @ laid.key.swapaxes(-1, -2))
        tanh = np.tanh(scores / laid.softcap)
        total = laid.cap(scores) - laid.alibi + laid.bias
        top = np.max(total.real, axis=-1, keepdims=True, initial=-np.inf, where=seen)
        top = np.maximum(top, sinks.real)
        is_empty = ~seen.any(axis=-1, keepdims=True) & (sinks.real == -np.inf)
        top = np.where(is_empty, 0, top)
        terms, sink_terms = np.where(seen, np.exp(total - top), 0), np.exp(sinks - top)
        sums = terms.sum(axis=-1, keepdims=True) + sink_terms
        lse = top + np.log(sums)
        if is_from_lse:
            terms, sink_terms = np.exp(total - lse), np.exp(sinks - lse)
        else:
            terms = terms / np.where(is_empty, precision(1), sums)
        weights = np.where(seen, terms, 0)
        sink_weight = np.where(sinks.real > -np.inf, sink_terms, 0)
        slope = 1 - tanh**2
        bend = -2 / laid.softcap * tanh * slope
        factors = np.ones(seen.shape, precision)
        if dropout_p > 0:
            places = {"query_offset": offset_of(query, key, options), "entries": entries}
            places |= {"origin": dropout_origin, "precision": precision}
            factors = dropout_factors(seen.shape, p=dropout_p, seed=dropout_seed, **places)
        output = sum_of_seen(seen, weights * factors, laid.value)
    if stored is not None:
        output = output.astype(stored).astype(precision)
    is_flat = all(np.ndim(x) == 2 for x in (query, key, value))
    return change(Solved(laid, weights, factors, slope, bend, output, lse, sink_weight, is_flat))


def attention(query, key, value, mask=None, **options):
    """Compute output, weights and lse. Dropout changes the weights, but not lse."""
    s = solve(query, key, value, mask, **options, is_from_lse=False)
    return Result(*map(s.shaped, (s.output, s.weights * s.factors, s.lse[..., 0])))


def naive(query, key, value, mask=None, *, precision=None, **options):
    """Compute the formula in the precision that regard uses."""
    precision = precision or arithmetic(result_type(query, key, value)).type
    return attention(query, key, value, mask, **options, precision=precision)


def derivatives(function, grad, arrays, most=None):
    """Return the gradient of ``sum(grad * function(arrays))`` for each of the named arrays, to the
    last bits: for an analytic function, a step of i h along one number changes the result by i h
    times the derivative, since nothing is subtracted (Squire and Trapp 1998, "Using Complex
    Variables to Estimate Derivatives of Real Functions").

    With `most`, only that many random elements of each array are computed; the others are NaN.
    """
    random = np.random.default_rng(0)
    arrays = {name: np.array(array, complex) for name, array in arrays.items()}
    result = {}
    for name, array in arrays.items():
        result[name] = np.full(array.shape, np.nan)
        places = list(np.ndindex(array.shape))
        if most is not None and len(places) > most:
            places = [places[i] for i in random.choice(len(places), most, replace=False)]
        for place in places:
            array[place] += 1j * STEP
            result[name][place] = (grad * function(arrays)).imag.sum() / STEP
            array[place] = array[place].real
    return result


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


def differences(actual, exact):
    """Return how far elements are apart; equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return np.where(actual == exact, 0, np.abs(actual - exact))


def error(actual, exact):
    return largest(differences(actual, exact))


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
