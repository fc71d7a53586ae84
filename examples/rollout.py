"""Follow attention through all layers of a model, for a few of its positions.

Attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers",
https://arxiv.org/abs/2005.00928) multiplies the layers' weights, averaged over heads, with the
identity added for the residual connection: A = (W + I) / 2. The share of each input position in a
position of the last layer is a row of A_L ... A_1. `regard.rollout` computes such rows without
storing any W.
"""

import argparse
import math
import time

import numpy as np

import regard

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 6, 4, 2, 32


def dense_rollout(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return the rollout of all positions under causal attention, by products of whole matrices."""
    length = query.shape[-2]
    product = np.eye(length)
    for layer in range(len(query)):
        _, weights = regard.scaled_dot_product_attention(
            query[layer], key[layer], key[layer], is_causal=True, return_weights=True
        )
        product = (weights.mean(axis=0) + np.eye(length)) / 2 @ product
    return product


def random_layers(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys with scattered attention."""
    rng = np.random.default_rng(0)
    query = 1.5 * rng.standard_normal((LAYERS, HEADS, length, HEAD_DIM))
    return query, rng.standard_normal((LAYERS, KV_HEADS, length, HEAD_DIM))


def previous_token_layers(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys with which each position attends only to the previous one."""
    places = regard.positional.sinusoidal(length, HEAD_DIM, base=1000).astype(np.float32)
    before = 1000 * np.roll(places, 1, axis=0)
    query = np.broadcast_to(before, (LAYERS, HEADS, length, HEAD_DIM))
    return query, np.broadcast_to(places, (LAYERS, KV_HEADS, length, HEAD_DIM))


def main() -> None:
    """Compare with the dense product, and then follow a long text with a known answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=8192, help="tokens of the long text")
    length = parser.parse_args().length

    query, key = random_layers(300)
    rows = regard.rollout(query, key, queries=[17, 299], is_causal=True)
    difference = np.abs(rows - dense_rollout(query, key)[[17, 299]]).max()
    print(f"{LAYERS} layers, 300 tokens: equal to the dense product: {difference < 1e-14}")
    print(f"each row adds up to 1: {np.allclose(rows.sum(axis=1), 1)}\n")

    # Each layer stays or moves back by one position, so the answer is a row of Pascal's triangle.
    start = time.perf_counter()
    row = regard.rollout(*previous_token_layers(length), queries=-1, is_causal=True)
    seconds = time.perf_counter() - start
    print(f"{length:,} tokens that each attend to the previous one, {seconds:.1f} s")
    print("steps back   rollout   by hand")
    for back in range(LAYERS + 1):
        print(f"{back:10}   {row[-1 - back]:.4f}    {math.comb(LAYERS, back) / 2**LAYERS:.4f}")
    print(f"everything before: {abs(row[: -LAYERS - 1].sum()):.4f}")
    print(f"{LAYERS} dense matrices would take {LAYERS * length**2 * 4 / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
