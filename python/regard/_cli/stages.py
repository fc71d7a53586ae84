"""Self-attention of one sentence, stage by stage and in one fused call."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import regard

Array = NDArray[np.float32]
Stages = dict[str, Array]

EXAMPLE = "Dream big and work for it"
MAX_TOKENS = 1024
EMBEDDING_DIM = 3
SEED = 123
HEAD_DIM = 2
SCALE = 1 / math.sqrt(HEAD_DIM)
TOLERANCE = 1e-5

# The embeddings of the notebook on which the example is based, and the output that it prints for
# the second word.
_KNOWN = {
    "Dream": (0.72, 0.45, 0.31),
    "big": (0.75, 0.20, 0.55),
    "and": (0.30, 0.80, 0.40),
    "work": (0.85, 0.35, 0.60),
    "for": (0.55, 0.15, 0.75),
    "it": (0.25, 0.20, 0.85),
}
_PRINTED = [0.2413, 0.2311]


def tokenize(sentence: str) -> list[str]:
    """Split a sentence at its white space. Raises ValueError."""
    tokens = unicodedata.normalize("NFC", sentence).split()
    if not tokens:
        raise ValueError("the sentence has no words")
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"at most {MAX_TOKENS} words, got {len(tokens)}")
    return tokens


def embed(tokens: Sequence[str]) -> Array:
    """Return the embedding of each token, the same in every sentence and on every machine."""
    return np.array([_KNOWN.get(token) or _hashed(token) for token in tokens], dtype=np.float32)


def _hashed(token: str) -> tuple[float, ...]:
    # Bytes that are not UTF-8 reach Python as lone surrogates, which only surrogatepass encodes.
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
    percent = [int.from_bytes(digest[4 * i : 4 * i + 4]) * 100 >> 32 for i in range(EMBEDDING_DIM)]
    return tuple(value / 100 for value in percent)


def run_stages(
    tokens: Sequence[str], *, with_position: bool = True, is_causal: bool = True
) -> Stages:
    """Run the stages one by one, and return the arrays between the words and their contexts."""
    length = len(tokens)
    embedding = embed(tokens)
    position = np.zeros_like(embedding)
    if with_position:
        position[:] = regard.positional.sinusoidal(length, EMBEDDING_DIM)
    x = embedding + position
    stages = {"embedding": embedding, "position": position, "x": x}

    generator = regard.TorchGenerator(SEED)
    for name in ("query", "key", "value"):
        stages[f"weight_{name}"] = generator.randn(EMBEDDING_DIM, HEAD_DIM)
        stages[name] = regard.matmul(x, stages[f"weight_{name}"])

    scores = regard.matmul(stages["query"], stages["key"].T)
    scaled_scores = masked_scores = regard.scale(scores, SCALE)
    if is_causal:
        masked_scores = regard.apply_mask(scaled_scores, regard.masks.causal(length))
    weights = regard.softmax(masked_scores)
    return stages | {
        "scores": scores,
        "scaled_scores": scaled_scores,
        "masked_scores": masked_scores,
        "weights": weights,
        "output": regard.matmul(weights, stages["value"]),
    }


def check_fused(stages: Stages) -> dict[str, Any]:
    """Compare the causal stages with one call of the fused attention; NaN does not pass."""
    arrays = (stages[name] for name in ("query", "key", "value"))
    output, weights = regard.scaled_dot_product_attention(
        *arrays, is_causal=True, return_weights=True
    )
    found = {
        "output_difference": float(np.abs(output - stages["output"]).max()),
        "weights_difference": float(np.abs(weights - stages["weights"]).max()),
    }
    passed = all(difference <= TOLERANCE for difference in found.values())
    return {**found, "tolerance": TOLERANCE, "passed": passed}


def check_notebook(tokens: Sequence[str]) -> dict[str, Any]:
    """Compute one output without positions and mask, and compare the digits of the notebook."""
    stages = run_stages(tokens, with_position=False, is_causal=False)
    arrays = (stages[name] for name in ("query", "key", "value"))
    output = regard.scaled_dot_product_attention(*arrays)[1].tolist()
    passed = [round(value, 4) for value in output] == _PRINTED
    return {"token": tokens[1], "output": output, "printed": _PRINTED, "passed": passed}
