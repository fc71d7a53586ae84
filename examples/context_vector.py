"""Turn the six words of a sentence into context vectors, with one step of self-attention.

The projections equal the ones that PyTorch draws after ``torch.manual_seed(123)``.
"""

import numpy as np

import regard

WORDS = ["Dream", "big", "and", "work", "for", "it"]
EMBEDDINGS = np.array(
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


def main() -> None:
    """Print what one word attends to, and the context vector of every word."""
    np.set_printoptions(precision=4, suppress=True)
    generator = regard.TorchGenerator(123)
    query, key, value = (regard.matmul(EMBEDDINGS, generator.randn(3, 2)) for _ in range(3))
    context, weights = regard.scaled_dot_product_attention(query, key, value, return_weights=True)

    print("'big' attends to")
    for word, weight in zip(WORDS, weights[1], strict=True):
        print(f"  {word:6}{weight:.4f}  {'#' * round(100 * weight)}")
    print("and becomes", context[1], end="\n\n")

    print("context vectors")
    for word, vector in zip(WORDS, context, strict=True):
        print(f"  {word:6}{vector}")

    print("\nvariance of scores of 1000 random vectors, before and after scaling")
    for head_dim in (8, 64, 256):
        queries, keys = generator.randn(1000, head_dim), generator.randn(1000, head_dim)
        scores = regard.matmul(queries, keys.T)
        scaled = regard.scale(scores, 1 / np.sqrt(head_dim))
        print(f"  head_dim {head_dim:3}: {scores.var():6.1f} {scaled.var():5.2f}")


if __name__ == "__main__":
    main()
