"""The tokens of a sentence and their embeddings."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EXAMPLE = "Dream big and work for it"
EMBEDDING_DIM = 3
MAX_TOKENS = 1024

# The embeddings of the notebook on which the example is based.
_KNOWN = {
    "Dream": (0.72, 0.45, 0.31),
    "big": (0.75, 0.20, 0.55),
    "and": (0.30, 0.80, 0.40),
    "work": (0.85, 0.35, 0.60),
    "for": (0.55, 0.15, 0.75),
    "it": (0.25, 0.20, 0.85),
}


class UnusableSentenceError(ValueError):
    """The sentence has no words or too many words."""


def tokenize(sentence: str) -> list[str]:
    """Split a sentence at its white space."""
    tokens = unicodedata.normalize("NFC", sentence).split()
    if not tokens:
        raise UnusableSentenceError("the sentence has no words")
    if len(tokens) > MAX_TOKENS:
        raise UnusableSentenceError(f"at most {MAX_TOKENS} words, got {len(tokens)}")
    return tokens


def embed(tokens: Sequence[str]) -> NDArray[np.float32]:
    """Return the embedding of each token, the same in every sentence and on every machine."""
    return np.array([_KNOWN.get(token) or _hashed(token) for token in tokens], dtype=np.float32)


def _hashed(token: str) -> tuple[float, ...]:
    # Bytes that are not UTF-8 reach Python as lone surrogates, which only surrogatepass encodes.
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
    percent = [int.from_bytes(digest[4 * i : 4 * i + 4]) * 100 >> 32 for i in range(EMBEDDING_DIM)]
    return tuple(value / 100 for value in percent)
