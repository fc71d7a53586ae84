"""A Llama model of random numbers, small enough for tests, with a vocabulary of bytes."""

import functools
import pathlib
import tempfile

import numpy as np

import regard
from llama_models import write_gguf

WIDTH, HEADS, KV_HEADS, BLOCKS, HIDDEN, LONGEST = 32, 4, 2, 3, 48, 512
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

    def drawn(*shape):
        return rng.standard_normal(shape, dtype=np.float32) / np.sqrt(np.float32(shape[-1]))

    parameters = {"token_embd.weight": 3 * drawn(len(tokens), WIDTH)}
    parameters["output_norm.weight"] = np.ones(WIDTH, np.float32)
    kv_width = WIDTH // HEADS * KV_HEADS
    for block in range(BLOCKS):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv_width, WIDTH),
            "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        for name, shape in shapes.items():
            parameters[f"blk.{block}.{name}.weight"] = drawn(*shape)
        for name in ("attn_norm", "ffn_norm"):
            parameters[f"blk.{block}.{name}.weight"] = np.ones(WIDTH, np.float32)
    metadata = {
        "llama.block_count": BLOCKS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.embedding_length": WIDTH,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.context_length": LONGEST,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["~ ~"],
        "tokenizer.ggml.token_type": [1] * len(alphabet()) + [3] * len(SPECIAL) + [1],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tiny.gguf"
        write_gguf(path, "llama", metadata, parameters)
        return regard.models.load(path)


def server(asked):
    """Return what `serve.served` returns, with this model."""
    import serve
    from models.batching import Batch

    most = asked.cache_mb * 1_000_000
    batch = Batch(tiny_llama(), asked.texts, page_size=asked.page_size, max_bytes=most)
    return serve.Server((asked.host, asked.port), batch)
