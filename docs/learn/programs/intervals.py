"""Causal attention in tiles: keys that no query of a tile sees are not computed."""

import measure
import numpy as np
import stable

QUERIES, KEYS = 192, 96


def attention(query, key, value):
    """Return the output, and how many scores were computed; query i sees keys 0 to i."""
    factor = query.dtype.type(1 / np.sqrt(query.shape[-1]))
    output = np.empty((len(query), value.shape[-1]), query.dtype)
    computed = 0
    for first in range(0, len(query), QUERIES):
        rows = query[first : first + QUERIES] * factor
        positions = np.arange(first, first + len(rows))[:, None]
        m = np.full((len(rows), 1), -np.inf, query.dtype)
        l, o = np.zeros_like(m), np.zeros_like(output[first : first + QUERIES])
        end = first + len(rows)  # of the interval of keys that some row sees
        for at in range(0, end, KEYS):
            keys = slice(at, min(at + KEYS, end))
            scores = rows @ key[keys].T
            computed += scores.size
            if keys.stop - 1 > first:  # the tile's last key is hidden from its first query
                hidden = np.arange(keys.start, keys.stop) > positions
                scores[hidden] = -np.inf
            new = np.maximum(m, scores.max(axis=-1, keepdims=True))
            rescale, weights = np.exp(m - new), np.exp(scores - new)
            l = l * rescale + weights.sum(axis=-1, keepdims=True)
            o = o * rescale + weights @ value[keys]
            m = new
        output[first : first + QUERIES] = o / l
    return output, computed


if __name__ == "__main__":
    for query, key, value in (measure.problem(500, 40, float), measure.problem()):
        mask = np.where(np.tri(len(query), dtype=bool), 0, -np.inf).astype(query.dtype)
        output, computed = attention(query, key, value)
        expected = stable.attention(query, key, value, mask)
        tolerance = 16 * np.finfo(query.dtype).eps
        np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)
    print(
        f"computed {computed / len(query) ** 2:.3f} of the square; causal attention needs 0.5"
    )
    if computed > 0.57 * len(query) ** 2:
        raise SystemExit("too many scores were computed")
    seconds = measure.median_time(lambda: attention(query, key, value))
    with_mask = measure.median_time(lambda: stable.attention(query, key, value, mask))
    print(f"{seconds / with_mask:.2f} of the time of the stages with a mask")
    measure.report("intervals.py", lambda: attention(query, key, value), is_causal=True)
