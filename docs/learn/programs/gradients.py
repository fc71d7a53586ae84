"""The gradients of attention in blocks: scores computed again, nothing of their size kept."""

import functools

import measure
import numpy as np
import stable

from regard import scaled_dot_product_attention, scaled_dot_product_attention_backward

QUERIES, KEYS = 48, 96


def gradients(grad_output, query, key, value, output, lse):
    """Return the gradients of sum(grad_output * output) by query, key and value."""
    scale = 1 / np.sqrt(query.shape[-1])
    grad_query, grad_key, grad_value = (np.zeros_like(array) for array in (query, key, value))
    for first in range(0, len(query), QUERIES):
        rows = slice(first, first + QUERIES)
        # Softmax's gradient subtracts sum(weights * grad_weights), which is known beforehand.
        mean = (grad_output[rows] * output[rows]).sum(axis=-1, keepdims=True)
        for at in range(0, len(key), KEYS):
            keys = slice(at, at + KEYS)
            weights = np.exp(scale * (query[rows] @ key[keys].T) - lse[rows, None])
            grad_scores = weights * (grad_output[rows] @ value[keys].T - mean)
            grad_value[keys] += weights.T @ grad_output[rows]
            grad_key[keys] += scale * (grad_scores.T @ query[rows])
            grad_query[rows] += scale * (grad_scores @ key[keys])
    return grad_query, grad_key, grad_value


def finite_difference(arrays, grad_output, direction):
    """Return the derivative of sum(grad_output * output) along a direction, from two calls."""
    step = np.cbrt(np.finfo(float).eps)
    above, below = (stable.attention(*(arrays + s * direction)) for s in (step, -step))
    return (grad_output * (above - below)).sum() / (2 * step)


if __name__ == "__main__":
    arrays, normal = measure.problem(250, 32, float), np.random.default_rng(3).standard_normal
    output, lse = scaled_dot_product_attention(*arrays, return_lse=True)
    grad_output = normal(output.shape)
    found = gradients(grad_output, *arrays, output, lse)
    for i, name in enumerate(("query", "key", "value")):
        direction = np.zeros_like(arrays)
        direction[i] = normal(arrays[i].shape)
        by_steps = finite_difference(arrays, grad_output, direction)
        along = (found[i] * direction[i]).sum()
        print(f"along a random {name}: {along:.9f}, by a finite difference {by_steps:.9f}")
        np.testing.assert_allclose(along, by_steps, rtol=1e-7)
    shipped = scaled_dot_product_attention_backward(grad_output, *arrays, output, lse)
    for ours, theirs in zip(found, (shipped.query, shipped.key, shipped.value), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=64 * np.finfo(float).eps)

    arrays = measure.problem()
    output, lse = scaled_dot_product_attention(*arrays, return_lse=True)
    call = (output, *arrays, output, lse)
    backward = functools.partial(scaled_dot_product_attention_backward, *call, threads=1)
    share = 2.5 * measure.work() / measure.median_time(backward) / measure.peak()
    print(f"the shipped backward kernel: {share:.0%} of the peak of 1 core, for five products")
