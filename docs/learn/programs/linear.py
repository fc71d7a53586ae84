"""The gated delta rule: a state in place of keys, token by token and in chunks of tokens."""

import measure
import numpy as np

import regard


def recurrence(query, key, value, decay, beta, state):
    """Return the output, token by token."""
    output = np.empty_like(value)
    for t in range(len(query)):
        state = np.exp(decay[t]) * state
        correction = beta[t] * (value[t] - key[t] @ state)
        state += key[t][:, None] * correction
        output[t] = query[t] @ state
    return output


def chunk(query, key, value, decay, beta, state):
    """Return the output for the tokens of one chunk, and the state after them."""
    total, beta = decay.cumsum()[:, None], beta[:, None]
    from_start, later = np.exp(total), ~np.tri(len(query), dtype=bool)
    between = np.exp(np.where(later, -np.inf, total - total.T))
    system = np.tril(beta * between * (key @ key.T), -1) + np.eye(len(key), dtype=key.dtype)
    corrections = np.linalg.solve(system, beta * (value - from_start * (key @ state)))
    output = from_start * (query @ state) + (between * (query @ key.T)) @ corrections
    return output, from_start[-1] * state + (between[-1][:, None] * key).T @ corrections


def in_chunks(*arrays, state, size):
    """Return the output for any number of tokens."""
    outputs = []
    for first in range(0, len(arrays[0]), size):
        output, state = chunk(*(x[first : first + size] for x in arrays), state)
        outputs.append(output)
    return np.concatenate(outputs)


def problem(*size):
    """Return query, key, value, decay (a logarithm) and beta, and an empty state."""
    query, key, value = measure.problem(*size)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    decay, beta = np.random.default_rng(5).random((2, len(key))).astype(key.dtype)
    return (query, key, value, -decay / 16, beta), np.zeros_like(key[: key.shape[1]])


if __name__ == "__main__":
    (arrays, state), (long, start) = problem(500, 32, float), problem()
    seconds = measure.median_time(lambda: recurrence(*long, start), 3)
    for size in (1, 16, 64, 256):
        off = abs(in_chunks(*arrays, state=state, size=size) - recurrence(*arrays, state)).max()
        assert off < 512 * np.finfo(float).eps
        time = measure.median_time(lambda n=size: in_chunks(*long, state=start, size=n), 3)
        print(f"chunks of {size:3}: off by {off:.1e}, {seconds / time:4.1f} times as fast")
    given = dict(zip(("query", "key", "value", "decay", "beta"), long, strict=True))
    output = 8 * regard.linear_attention(**given, threads=1)  # which scales queries by 1 / 8
    np.testing.assert_allclose(output, recurrence(*long, start), atol=1e-4)
    shipped = measure.median_time(lambda: regard.linear_attention(**given, threads=1))
    print(f"regard, 1 core: {seconds / shipped:.0f} times as fast")
