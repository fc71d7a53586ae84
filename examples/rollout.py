"""Follow attention through all layers of a model, for a few of its positions.

Attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers",
https://arxiv.org/abs/2005.00928) multiplies the layers' weights, averaged over heads, with the
identity added for the residual connection: A = (W + I) / 2. What a position of the last layer takes
from each position of the input is a row of A_L ... A_1.

Here a row x goes through the product from the left, one layer at a time, x A = (x W + x) / 2, and
no W is ever stored: x W is a sum over queries, and `scaled_dot_product_attention_backward` computes
it in blocks. The gradient of the values, for x as the gradient of the output, is this sum.
"""

import argparse
import math
import time
from collections.abc import Iterable

import numpy as np

import regard

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 6, 4, 2, 32


def times_weights(rows: np.ndarray, query: np.ndarray, key: np.ndarray, **options) -> np.ndarray:
    """Return ``rows @ W`` for the mean W of the heads' weights, without storing any of them.

    Rows have shape (n, q_len), and what is returned has shape (n, kv_len).
    """
    heads, kv_heads, kv_len = query.shape[-3], key.shape[-3], key.shape[-2]
    value = np.zeros((kv_heads, kv_len, len(rows)), query.dtype)
    output, lse = regard.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    grad_output = np.broadcast_to(rows.T, output.shape)
    gradients = regard.scaled_dot_product_attention_backward(
        grad_output, query, key, value, output, lse, with_respect_to=["value"], **options
    )
    return gradients.value.sum(axis=0).T / heads


def rollout(
    positions: Iterable[int], layers: list[tuple[np.ndarray, np.ndarray]], **options
) -> np.ndarray:
    """Return what each of these positions of the last layer takes from each input position."""
    length = layers[0][0].shape[-2]
    rows = np.eye(length, dtype=layers[0][0].dtype)[list(positions)]
    for query, key in reversed(layers):
        rows = (times_weights(rows, query, key, **options) + rows) / 2
    return rows


def dense_rollout(layers: list[tuple[np.ndarray, np.ndarray]], **options) -> np.ndarray:
    """Return the same for all positions, by products of whole matrices."""
    length = layers[0][0].shape[-2]
    product = np.eye(length)
    for query, key in layers:
        _, weights = regard.scaled_dot_product_attention(
            query, key, key, return_weights=True, **options
        )
        product = (weights.mean(axis=0) + np.eye(length)) / 2 @ product
    return product


def random_layers(length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return queries and keys that attend here and there."""
    rng = np.random.default_rng(0)
    return [
        (
            1.5 * rng.standard_normal((HEADS, length, HEAD_DIM)),
            rng.standard_normal((KV_HEADS, length, HEAD_DIM)),
        )
        for _ in range(LAYERS)
    ]


def previous_token_layers(length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return queries and keys by which each position attends to the one before it, and no other."""
    places = regard.positional.sinusoidal(length, HEAD_DIM, base=1000).astype(np.float32)
    query = np.broadcast_to(1000 * np.roll(places, 1, axis=0), (HEADS, length, HEAD_DIM))
    key = np.broadcast_to(places, (KV_HEADS, length, HEAD_DIM))
    return [(query, key)] * LAYERS


def main() -> None:
    """Compare with the dense product, and then follow a long text whose answer is known."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=8192, help="tokens of the long text")
    length = parser.parse_args().length

    layers = random_layers(300)
    rows = rollout([17, 299], layers, is_causal=True)
    difference = np.abs(rows - dense_rollout(layers, is_causal=True)[[17, 299]]).max()
    print(f"{LAYERS} layers, 300 tokens: as the dense product: {difference < 1e-14}")
    print(f"what a position takes adds up to 1: {np.allclose(rows.sum(axis=1), 1)}\n")

    # Each layer stays or goes back by one position, so the answer is Pascal's triangle.
    start = time.perf_counter()
    (row,) = rollout([length - 1], previous_token_layers(length), is_causal=True)
    seconds = time.perf_counter() - start
    print(f"{length:,} tokens in which each attends to the one before it, {seconds:.1f} s")
    print("steps back   rollout   by hand")
    for back in range(LAYERS + 1):
        print(f"{back:10}   {row[-1 - back]:.4f}    {math.comb(LAYERS, back) / 2**LAYERS:.4f}")
    print(f"everything before: {abs(row[: -LAYERS - 1].sum()):.4f}")
    print(f"{LAYERS} dense matrices would take {LAYERS * length**2 * 4 / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
