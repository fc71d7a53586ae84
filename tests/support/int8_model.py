"""The computation of `precision="int8"`, in NumPy: the integers, and the scores that result from
them.

Queries, and keys minus their mean, are rotated. The largest magnitude of such a row x is 127 steps:
``step = max |x| / 127`` and ``rint(x * (127 / max |x|))``, in float32, as in the kernels. The mean
is over the finite elements of the valid keys, in float64.
"""

from typing import NamedTuple

import numpy as np

from reference import Result, attention, expected, lay_out, result_type


class Rounded(NamedTuple):
    integers: np.ndarray
    step: np.ndarray  # float32

    @property
    def numbers(self):
        return self.integers * self.step.astype(np.float64)


def group_of(dim):
    """Return how many dimensions are rotated together: the largest power of two that divides
    `dim`."""
    return dim & -dim


def rotated(rows):
    """Multiply float32 rows by a Hadamard matrix for each group of dimensions, and divide by the
    group's size: the product of two rotated rows is `1 / group` of the original product."""
    dim, group = rows.shape[-1], group_of(rows.shape[-1])
    rows = rows * np.float32(1 / group)
    half = 1
    while half < group:
        pairs = rows.reshape(*rows.shape[:-1], dim // (2 * half), 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        rows = np.stack([a + b, a - b], -2).reshape(rows.shape)
        half *= 2
    return rows


def rounded(rows):
    """Return finite float32 rows in 255 steps each."""
    largest = np.abs(rows).max(-1, keepdims=True)
    counts = largest >= np.float32(2.0**-120)
    inverse = np.divide(np.float32(127), largest, where=counts, out=np.zeros_like(largest))
    step = np.where(counts, largest / np.float32(127), np.float32(0))
    return Rounded(np.rint(rows * inverse).astype(np.int64), step)


def mean_of(keys):
    """Return the mean of the keys (kv_len, head_dim) of a head."""
    finite = np.where(np.isfinite(keys), keys, 0).astype(np.float64)
    return (finite.sum(0) / max(len(keys), 1)).astype(np.float32)


def centered(key, starts, lengths):
    """Return keys (..., kv_len, head_dim) from `starts` to `lengths` minus their mean, and the
    means."""
    less, means = np.zeros_like(key), np.zeros_like(key)
    for index in np.ndindex(key.shape[:-2]):
        present = slice(int(starts[index]), int(lengths[index]))
        means[index] = mean_of(key[index][present])
        less[index][present] = key[index][present] - means[index][present]
    return less, means


def rounded_problem(
    query, key, value, *, scale=None, key_lengths=None, left_padding=None, **options
):
    """Return arrays and options of an exact call with the scores of the int8 call, and the largest
    error that rounding to integers causes in each row's scores.

    q . k is `group q' . k' + q . mean`, with q and k - mean rotated and rounded: one product of
    rows twice as long. The keys' step multiplies the rotated |q|, the queries' step the rounded
    keys, each with a factor of at most one half.
    """
    query, key, value = (np.asarray(x) for x in (query, key, value))
    is_flat = query.ndim == key.ndim == value.ndim == 2
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    query, key = (np.broadcast_to(x, batch + x.shape[-3:]).astype(np.float32) for x in (query, key))
    starts = 0 if left_padding is None else left_padding
    ends = key.shape[-2] if key_lengths is None else key_lengths
    starts, ends = (
        np.broadcast_to(np.broadcast_to(numbers, batch)[..., None], key.shape[:-2])
        for numbers in (starts, ends)
    )
    less, means = centered(key, starts, ends)
    group = group_of(query.shape[-1])
    turned = rotated(query)
    q, k = rounded(turned), rounded(rotated(less))
    wide = [
        np.concatenate([query.astype(np.float64), group * q.numbers], -1),
        np.concatenate([means.astype(np.float64), k.numbers], -1),
    ]
    if is_flat:
        wide = [x[0] for x in wide]
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    shared = query.shape[-3] // key.shape[-3] if key.shape[-3] else 1
    keys = np.repeat(np.abs(k.numbers).sum(-1), shared, -2)[..., None, :]
    steps = np.repeat(k.step[..., 0], shared, -2)[..., None, :]
    off = steps * np.abs(turned.astype(np.float64)).sum(-1, keepdims=True) + q.step * keys
    off *= np.abs(factor)[..., None, None] * group / 2  # one number, or one per head
    options |= {"scale": factor, "key_lengths": key_lengths, "left_padding": left_padding}
    return wide, {name: option for name, option in options.items() if option is not None}, off


def expected_of_integers(query, key, value, **options):
    """Return the exact result for the integers' scores, and the errors of float32 around it.

    The steps of a query and a key are rounded, with scale in one of them, and so is their product:
    at most 3 eps, compared with 1.5 for a query times its scale. So twice the allowance of
    `expected` suffices.
    """
    dtype = result_type(query, key, value)
    wide, options, _ = rounded_problem(query, key, value, **options)
    wide = *wide, np.asarray(value).astype(np.float64)
    want = expected(*(x.astype(np.float32) for x in wide), **options)
    limit = Result(*(2 * x for x in want.limit))
    return want._replace(exact=attention(*wide, **options), limit=limit, dtype=dtype)


def allowed_by_steps(query, key, value, **options):
    """Return how far the int8 call may be from attention over the original arrays, for each row of
    the output, and of lse.

    If scores move by at most e, a weight moves by at most exp(2 e) - 1 of itself, since they enter
    the numerator and the denominator, and lse by e. A cap moves nothing further.
    """
    (q, k), exact_options, off = rounded_problem(query, key, value, **options)
    laid = lay_out(q, k, value, **exact_options, precision=np.float64)
    weights = attention(query, key, value, **options).weights.reshape(laid.seen.shape)
    off = np.max(np.broadcast_to(off, laid.seen.shape), axis=-1, where=laid.seen, initial=0)
    relative = np.expm1(np.minimum(2 * off, 700))[..., None]  # finite
    return relative * (weights @ np.abs(laid.value)), off
