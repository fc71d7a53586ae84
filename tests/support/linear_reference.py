"""Linear attention as its recurrence, token by token."""

from typing import NamedTuple

import numpy as np


class Recurrence(NamedTuple):
    output: np.ndarray
    state: np.ndarray
    sizes: tuple  # of output and state: with absolute values of all products, what rounding scales


def recurrence(
    query, key, value, *, decay=None, beta=None, state=None, scale=None, dtype=np.longdouble
):
    """Compute arrays with a heads axis in the precision `dtype`."""
    arrays = [None if x is None else np.asarray(x).astype(dtype) for x in (decay, beta, state)]
    query, key, value = (np.asarray(x).astype(dtype) for x in (query, key, value))
    heads, length, dim = query.shape[-3:]
    kv_heads, value_dim = key.shape[-3], value.shape[-1]
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    rows = (*batch, kv_heads, length)
    query, key, value = (np.broadcast_to(x, batch + x.shape[-3:]) for x in (query, key, value))
    by_column = arrays[0] is not None and arrays[0].ndim == len(rows) + 1
    decay = arrays[0] if arrays[0] is not None else dtype(0)
    decay = np.broadcast_to(decay, (*rows, dim)) if by_column else np.broadcast_to(decay, rows)
    beta = None if arrays[1] is None else np.broadcast_to(arrays[1], rows)
    now = np.zeros((*rows[:-1], dim, value_dim), dtype)
    if arrays[2] is not None:
        now += arrays[2]
    size = np.abs(now)
    factor = dtype(1 / np.sqrt(dim) if scale is None else scale)
    output = np.zeros((*batch, heads, length, value_dim), dtype)
    output_size = np.zeros_like(output)
    with np.errstate(all="ignore"):
        for t in range(length):
            kept = np.exp(decay[..., t, :, None] if by_column else decay[..., t, None, None])
            now, size = kept * now, kept * size
            update, k = value[..., t, :], key[..., t, :]
            if beta is not None:
                update = beta[..., t, None] * (update - (k[..., None] * now).sum(-2))
            now = now + k[..., None] * update[..., None, :]
            size = size + np.abs(k[..., None] * update[..., None, :])
            for states, results in ((now, output), (size, output_size)):
                seen = np.repeat(states, heads // max(kv_heads, 1), axis=-3)
                q = query[..., t, :] if states is now else np.abs(query[..., t, :])
                results[..., t, :] = factor * (q[..., None] * seen).sum(-2)
    return Recurrence(output, now, (output_size, size))
