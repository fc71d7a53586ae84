"""Softmax that does not overflow, also of rows in which everything is hidden."""

import measure
import numpy as np
import stages

from regard import scaled_dot_product_attention


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return exp(scores) divided by their sums; rows of only -inf become rows of zeros."""
    largest = scores.max(axis=-1, keepdims=True)
    # -inf - -inf would be NaN: a row in which everything is hidden subtracts 0 instead.
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    sums = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(sums == 0, 1, sums)


def attention(query, key, value, mask=None):
    """Return the output; `mask` is added to the scores, and hides where it is -inf."""
    scores = query @ key.T / np.sqrt(query.shape[-1]).astype(query.dtype)
    return softmax(scores if mask is None else scores + mask) @ value


if __name__ == "__main__":
    for last in (88, 89):
        scores = np.array([0, last], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            naive = np.exp(scores) / np.exp(scores).sum()
        print(f"softmax of [0, {last}]: naive {naive}, stable {softmax(scores)}")

    query, key, value = measure.problem()
    tolerance = 16 * np.finfo(np.float32).eps
    output = attention(query, key, value)
    np.testing.assert_allclose(output, stages.attention(query, key, value)[0], atol=tolerance)

    # Scores of thousands, and a mask that hides all keys from the first query.
    mask = np.where(np.tri(*2 * [len(query)], -1, dtype=bool), 0, -np.inf).astype(np.float32)
    output = attention(50 * query, key, value, mask)
    print("the first query sees nothing, and its output is", np.unique(output[0]))
    expected = scaled_dot_product_attention(50 * query, key, value, mask)
    # Rounding moves a score of 2,000 by some 1e-4, and its weight by as much of itself.
    np.testing.assert_allclose(output, expected, atol=2000 * 16 * np.finfo(np.float32).eps)
    measure.report("stable.py", lambda: attention(query, key, value))
