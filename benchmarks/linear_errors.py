"""Print the errors of linear attention by rule and length, relative to the largest output.

python benchmarks/linear_errors.py [--lengths 1000 100000]

Each is the largest difference from the recurrence in float64, for float32 arrays of two heads, and
for comparison that of the recurrence in float32.
"""

import argparse

import numpy as np

import regard

HEADS, DIM = 2, 64


def recurrence(query, key, value, decay, beta, dtype):
    """Return the output, token by token."""
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    output, state = np.empty_like(value), np.zeros((HEADS, DIM, DIM), dtype)
    for t in range(query.shape[1]):
        if decay is not None:
            factor = np.exp(decay[:, t].astype(dtype))
            state *= factor.reshape(HEADS, -1, 1)
        update = value[:, t]
        if beta is not None:
            update = beta[:, t, None] * (update - np.einsum("hc,hcv->hv", key[:, t], state))
        state += key[:, t, :, None] * update[:, None]
        output[:, t] = np.einsum("hc,hcv->hv", query[:, t], state)
    return output


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 10_000, 100_000])
    options = parser.parse_args()
    print("| rule | " + " | ".join(f"{n:,} tokens" for n in options.lengths) + " |")
    for name in ("linear", "gated", "gated by column", "delta", "gated delta"):
        cells = []
        for n in options.lengths:
            rng = np.random.default_rng(0)
            query, key, value = rng.standard_normal((3, HEADS, n, DIM), dtype=np.float32)
            key /= np.linalg.norm(key, axis=-1, keepdims=True)
            shape = (HEADS, n, DIM) if "column" in name else (HEADS, n)
            decay = -rng.random(shape, dtype=np.float32) / 16 if "gated" in name else None
            beta = rng.random((HEADS, n), dtype=np.float32) if "delta" in name else None
            own = regard.linear_attention(query, key, value, decay=decay, beta=beta, scale=1)
            exact, rough = (
                recurrence(query, key, value, decay, beta, dtype)
                for dtype in (np.float64, np.float32)
            )
            errors = (np.abs(x - exact).max() / np.abs(exact).max() for x in (own, rough))
            cells.append(", ".join(f"{error:.1e}" for error in errors))
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
