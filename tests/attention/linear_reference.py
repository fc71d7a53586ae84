"""Linear attention as its recurrence, token by token, and its gradients likewise in reverse."""

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


def reverse_recurrence(problem, grad_output, grad_state=0, dtype=np.longdouble):
    """Return the gradients of a problem by name, and their sizes as those of a recurrence."""
    heads, length, dim = problem["query"].shape[-3:]
    kv_heads, value_dim = problem["key"].shape[-3], problem["value"].shape[-1]
    batch = np.broadcast_shapes(*(problem[n].shape[:-3] for n in ("query", "key", "value")))
    rows, queries = (*batch, kv_heads, length), (*batch, kv_heads, heads // kv_heads, length)
    decay, beta = np.asarray(problem.get("decay", 0)), problem.get("beta", 1)
    decay = decay if decay.ndim > len(rows) else decay[..., None]
    states = np.zeros((*rows[:-1], dim, value_dim), dtype)
    scale = dtype(problem.get("scale", 1 / np.sqrt(dim)))

    def full(array, shape):
        return np.broadcast_to(np.asarray(array).astype(dtype), shape)

    k, v = full(problem["key"], (*rows, dim)), full(problem["value"], (*rows, value_dim))
    q = full(problem["query"], (*batch, heads, length, dim)).reshape(*queries, dim)
    g = scale * full(grad_output, (*batch, heads, length, value_dim)).reshape(*queries, value_dim)
    kept, beta = np.exp(full(decay, (*rows, dim))), full(beta, rows)
    replaces = int("beta" in problem)

    # Each of the following has two elements: the arrays, and their sizes.
    now = [s + full(problem.get("state", 0), states.shape) for s in (states, states)]
    now[1], steps = abs(now[1]), []
    for t in range(length):
        before = [kept[..., t, :, None] * s for s in now]
        rest = [v[..., t, :] - replaces * (k[..., t, :, None] * before[0]).sum(-2)]
        rest.append(abs(v[..., t, :]) + replaces * (abs(k[..., t, :, None]) * before[1]).sum(-2))
        u = beta[..., t, None] * rest[0]
        update = k[..., t, :, None] * u[..., None, :]
        now = [before[0] + update, before[1] + abs(update)]
        steps.append((before, rest, u, now))
    d = [states + grad_state, states + abs(grad_state)]
    names = ("query", "key", "value", "decay", "beta")
    arrays = (q, k, v, kept, beta)
    found = [dict(zip(names, map(np.zeros_like, arrays), strict=True)) for _ in d]
    for t in reversed(range(length)):
        before, rest, u, now = steps[t]
        for size, absolute in enumerate((np.positive, np.abs)):
            to, sign = found[size], 1 if size else -1
            q_t, g_t, k_t, u_t = map(absolute, (q[..., t, :], g[..., t, :], k[..., t, :], u))
            d[size] = d[size] + (q_t[..., None] * g_t[..., None, :]).sum(-3)
            du = (k_t[..., None] * d[size]).sum(-2)
            dv = to["value"][..., t, :] = beta[..., t, None] * du
            earlier = d[size] + sign * replaces * k_t[..., None] * dv[..., None, :]
            to["query"][..., t, :] = (now[size][..., None, :, :] * g_t[..., None, :]).sum(-1)
            to["key"][..., t, :] = (
                d[size] * u_t[..., None, :] + sign * replaces * before[size] * dv[..., None, :]
            ).sum(-1)
            to["decay"][..., t, :] = (before[size] * earlier).sum(-1)
            to["beta"][..., t] = (rest[size] * du).sum(-1)
            d[size] = kept[..., t, :, None] * earlier
    for size, to in enumerate(found):
        to["query"], to["state"] = to["query"].reshape(*batch, heads, length, dim), d[size]
        if np.ndim(problem.get("decay", 0)) <= len(rows):
            to["decay"] = to["decay"].sum(-1)
    inputs = {name: np.shape(problem[name]) for name in (*names, "state") if name in problem}
    return [{name: _summed_to(to[name], shape) for name, shape in inputs.items()} for to in found]


def _summed_to(array, shape):
    lead = array.ndim - len(shape)
    array = array.sum(tuple(range(lead)))
    axes = tuple(axis for axis, size in enumerate(shape) if size != array.shape[axis])
    return array.sum(axes, keepdims=True)
