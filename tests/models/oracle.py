"""The models' forward passes by the book: one sequence, whole matrices, no cache, no regard.

With `dtype` float64 they are the oracle. With float32 they are the same formulas in NumPy's usual
rounding, with which errors are compared: see `check_rounding`.
"""

import math

import numpy as np


def check_rounding(actual, formula, *arguments, **options):
    """Allow twice the error of the same formula in NumPy's float32."""
    exact = formula(*arguments, np.float64, **options)
    usual = formula(*arguments, np.float32, **options)
    assert actual.dtype == usual.dtype == np.float32
    assert actual.shape == exact.shape
    assert exact.dtype == np.float64
    assert distance(actual, exact) <= 2 * distance(usual, exact)


def distance(a, b):
    """Return the root of the mean square difference."""
    return np.sqrt(np.square(a.astype(np.float64) - b).mean())


def attention(query, key, value, is_causal, window=None):
    """Compute softmax(query key^T / sqrt(head_dim)) value for one head, every score in memory."""
    scores = query @ key.T / query.dtype.type(math.sqrt(query.shape[1]))
    if is_causal:
        visible = np.tri(*scores.shape, dtype=bool)
        if window is not None:
            visible &= ~np.tri(*scores.shape, k=-window, dtype=bool)
        scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return (weights / weights.sum(1, keepdims=True)) @ value


def heads_of(query, key, value, heads, kv_heads, **options):
    """Attend in each head of (length, heads * dim), where heads are next to each other."""
    dim = query.shape[1] // heads
    outputs = []
    for head in range(heads):
        own = slice(head * dim, (head + 1) * dim)
        shared = head // (heads // kv_heads)
        read = slice(shared * dim, (shared + 1) * dim)
        outputs.append(attention(query[:, own], key[:, read], value[:, read], **options))
    return np.concatenate(outputs, axis=1)


def turned(x, heads, base):
    """Rotate neighboring columns, as a complex number, by their row index."""
    rows, width = x.shape
    dim = width // heads
    angles = np.arange(rows)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    pairs = x.reshape(rows, heads, dim // 2, 2)
    turns = (np.cos(angles) + 1j * np.sin(angles))[:, None]
    numbers = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
    return np.stack([numbers.real, numbers.imag], -1).reshape(rows, width).astype(x.dtype)


def llama(parameters, metadata, tokens, dtype, window=None):
    """Return logits (length, vocabulary) of a text in which a token sees the last `window`."""
    heads = metadata["llama.attention.head_count"]
    kv_heads = metadata["llama.attention.head_count_kv"]
    base = metadata["llama.rope.freq_base"]
    epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]

    def weight(name):
        return parameters[f"{name}.weight"].astype(dtype)

    def norm(name, x):
        return x / np.sqrt((x * x).mean(1, keepdims=True) + dtype(epsilon)) * weight(name)

    embedding = weight("token_embd")
    x = embedding[tokens]
    for block in range(metadata["llama.block_count"]):
        blk = f"blk.{block}"
        normed = norm(f"{blk}.attn_norm", x)
        query = turned(normed @ weight(f"{blk}.attn_q").T, heads, base)
        key = turned(normed @ weight(f"{blk}.attn_k").T, kv_heads, base)
        value = normed @ weight(f"{blk}.attn_v").T
        attended = heads_of(query, key, value, heads, kv_heads, is_causal=True, window=window)
        x = x + attended @ weight(f"{blk}.attn_output").T
        normed = norm(f"{blk}.ffn_norm", x)
        gate = normed @ weight(f"{blk}.ffn_gate").T
        gated = gate / (1 + np.exp(-gate)) * (normed @ weight(f"{blk}.ffn_up").T)
        x = x + gated @ weight(f"{blk}.ffn_down").T
    return norm("output_norm", x) @ embedding.T
