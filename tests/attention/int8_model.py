"""The computation of `precision="int8"`, in NumPy: the integers, and the scores that result from
them.

Queries, and keys minus their mean, are rotated. The largest magnitude of such a row x is 127 steps:
``step = max |x| / 127`` and ``rint(x * (127 / max |x|))``, in float32, as in the kernels. The mean
is over the finite elements of the valid keys, in float64.
"""

from typing import NamedTuple

import numpy as np

from error_limits import expected
from fewer_bits import group_of, rotated
from reference import Result, attention, lay_out, result_type


class Rounded(NamedTuple):
    integers: np.ndarray
    step: np.ndarray  # float32

    @property
    def numbers(self):
        return self.integers * self.step.astype(np.float64)


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


def rounded_problem(query, key, value, *, scale=None, **options):
    """Return arrays and options of an exact call with the scores of the int8 call.

    q . k is `group q' . k' + q . mean`, with q and k - mean rotated and rounded: one product of
    rows twice as long. The mean is over the keys from `left_padding` to `key_lengths`.
    """
    laid = lay_out(query, key, value, **options, precision=np.float32)
    group, batch = group_of(laid.query.shape[-1]), laid.key.shape[:-3]
    limits = options.get("left_padding", 0), options.get("key_lengths", laid.key.shape[-2])
    less, means = np.zeros((2, *laid.key.shape), np.float32)
    for entry in np.ndindex(batch):
        present = slice(*(int(np.broadcast_to(limit, batch)[entry]) for limit in limits))
        for head, keys in enumerate(laid.key[entry]):
            means[entry][head] = mean_of(keys[present])
            less[entry][head, present] = (keys - means[entry][head])[present]
    q, k = rounded(rotated(laid.query)), rounded(rotated(less))
    wide = [
        np.concatenate([laid.query.astype(np.float64), group * q.numbers], -1),
        np.concatenate([means.astype(np.float64), k.numbers], -1),
        laid.value.astype(np.float64),
    ]
    if query.ndim == key.ndim == value.ndim == 2:
        wide = [x[0] for x in wide]
    factor = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    return wide, options | {"scale": factor}


def expected_of_integers(query, key, value, **options):
    """Return the exact result for the integers' scores, and the errors of float32 around it.

    The steps of a query and a key are rounded, with scale in one of them, and so is their product:
    at most 3 eps, compared with 1.5 for a query times its scale. So twice the allowance of
    `expected` suffices.
    """
    wide, options = rounded_problem(query, key, value, **options)
    want = expected(*(x.astype(np.float32) for x in wide), **options)
    limit = Result(*(2 * x for x in want.limit))
    exact, dtype = attention(*wide, **options), result_type(query, key, value)
    return want._replace(exact=exact, limit=limit, dtype=dtype)
