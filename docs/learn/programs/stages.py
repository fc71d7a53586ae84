"""Attention as four stages in NumPy, each of which makes an array."""

import measure
import numpy as np


def attention(query, key, value, mask=None):
    """Return softmax(query key^T / sqrt(head_dim) + mask) value, and the weights."""
    scores = query @ key.T / np.sqrt(query.shape[-1]).astype(query.dtype)
    if mask is not None:
        scores = scores + mask
    weights = np.exp(scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights @ value, weights


if __name__ == "__main__":
    from regard import TorchGenerator, scaled_dot_product_attention

    words = ["Dream", "big", "and", "work", "for", "it"]
    embeddings = np.array(
        [
            [0.72, 0.45, 0.31],
            [0.75, 0.20, 0.55],
            [0.30, 0.80, 0.40],
            [0.85, 0.35, 0.60],
            [0.55, 0.15, 0.75],
            [0.25, 0.20, 0.85],
        ],
        np.float32,
    )
    generator = TorchGenerator(123)
    query, key, value = (embeddings @ generator.randn(3, 2) for _ in range(3))
    output, weights = attention(query, key, value)
    print("'big' attends to")
    for word, weight in zip(words, weights[1], strict=True):
        print(f"  {word:6}{weight:.4f}")
    print("and becomes", output[1].round(4))
    np.testing.assert_allclose(output[1], [0.2413, 0.2311], atol=5e-5)

    query, key, value = measure.problem()
    expected = scaled_dot_product_attention(query, key, value)
    tolerance = 16 * np.finfo(np.float32).eps
    np.testing.assert_allclose(
        attention(query, key, value)[0], expected, rtol=0, atol=tolerance
    )
    measure.report("stages.py", lambda: attention(query, key, value))
