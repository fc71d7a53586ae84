"""A Llama model of random numbers, small enough for tests, with a vocabulary of bytes."""

import functools
import pathlib
import tempfile

import numpy as np

import regard
from llama_models import WIDTH, as_gguf, parameters, write_gguf

SPECIAL = ["<|im_start|>", "<|im_end|>"]


def alphabet():
    """Return GPT-2's characters for the 256 bytes, in a fixed order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(rest))]


@functools.cache
def tiny_llama():
    """Return the model."""
    rng = np.random.default_rng(0)
    tokens = [*alphabet(), *SPECIAL, "~~"]
    own = parameters(rng, "llama")
    own["model.embed_tokens.weight"] = rng.standard_normal((len(tokens), WIDTH), np.float32)
    facts, tensors = as_gguf(own, "llama")
    facts |= {
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["~ ~"],
        "tokenizer.ggml.token_type": [1] * len(alphabet()) + [3] * len(SPECIAL) + [1],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        write_gguf(path, "llama", facts, tensors)
        return regard.models.load(path)
