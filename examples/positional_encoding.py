"""Add sinusoidal positions to the embeddings of a sentence, and see the effect of word order."""

import numpy as np

import regard

WORDS = ["you", "are", "amazing"]
DIM = 8


def main() -> None:
    """Print the causal attention of a sentence, and the effect of word order on it."""
    np.set_printoptions(precision=4, suppress=True)
    random = np.random.RandomState(42)
    embeddings = random.rand(len(WORDS), DIM)
    w_query, w_key, w_value = random.rand(3, DIM, DIM)
    positions = regard.positional.sinusoidal(len(WORDS), DIM)

    def attend(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return regard.scaled_dot_product_attention(
            regard.matmul(x, w_query),
            regard.matmul(x, w_key),
            regard.matmul(x, w_value),
            is_causal=True,
            return_weights=True,
        )

    print("positions")
    print(positions)
    x = embeddings + positions
    output, weights = attend(x)
    print("\nwords with their positions")
    print(x)
    print("\nattention weights")
    print(weights)
    print("\nattention output")
    print(output)

    # The last word sees all others. Without positions, their order does not affect it.
    swapped = embeddings[[1, 0, 2]]
    plain = np.abs(attend(swapped)[0][2] - attend(embeddings)[0][2]).max()
    placed = np.abs(attend(swapped + positions)[0][2] - output[2]).max()
    print("\nchange of the last word's output when the first two words swap")
    print(f"  without positions {plain:.4f}")
    print(f"  with positions    {placed:.4f}")


if __name__ == "__main__":
    main()
