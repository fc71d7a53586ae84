"""Attention in tiles: a few queries and a few keys at a time, and never all scores."""

import measure
import numpy as np
import stable

QUERIES, KEYS = 192, 96


def attention(query, key, value):
    """Return the output; at most QUERIES x KEYS scores exist at a time."""
    factor = query.dtype.type(1 / np.sqrt(query.shape[-1]))
    output = np.empty((len(query), value.shape[-1]), query.dtype)
    for first in range(0, len(query), QUERIES):
        rows = query[first : first + QUERIES] * factor
        m = np.full((len(rows), 1), -np.inf, query.dtype)
        l, o = np.zeros_like(m), np.zeros_like(output[first : first + QUERIES])
        for at in range(0, len(key), KEYS):
            scores = rows @ key[at : at + KEYS].T
            new = np.maximum(m, scores.max(axis=-1, keepdims=True))
            rescale, weights = np.exp(m - new), np.exp(scores - new)
            l = l * rescale + weights.sum(axis=-1, keepdims=True)
            o = o * rescale + weights @ value[at : at + KEYS]
            m = new
        output[first : first + QUERIES] = o / l
    return output


if __name__ == "__main__":
    exact = measure.problem(500, 40, float)
    difference = abs(attention(*exact) - stable.attention(*exact)).max()
    print(f"float64: at most {difference:.1e} from the stages")
    np.testing.assert_allclose(attention(*exact), stable.attention(*exact), rtol=0, atol=1e-15)

    arrays = measure.problem()
    tolerance = 16 * np.finfo(np.float32).eps
    np.testing.assert_allclose(attention(*arrays), stable.attention(*arrays), atol=tolerance)
    square = 4 * measure.LENGTH**2
    print(f"scores in memory: {4 * QUERIES * KEYS / square:.1%} of those of the stages")
    measure.report("tiles.py", lambda: attention(*arrays))
