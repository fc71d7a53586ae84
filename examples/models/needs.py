"""Say how much memory and time a Llama model needs, before it takes them."""

import pathlib
import sys
import time

import numpy as np

# A number: int8 with a scale for 64, q4_1 with a scale and a minimum for 32.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1 + 4 / 64}
BYTES |= {"float8_e4m3fn": 1, "q4_1": (4 + 16 / 32 + 16 / 32) / 8}
TRIAL = 32  # tokens of a prompt, at most, that are read to measure the speed
WRITTEN = 8  # tokens that are written for the same
TEMPORARY = 15e6  # bytes: blocks of weights while they are read, activations


def memory_needed(metadata, weights, cache_dtype, length):
    """Return a line that says how much memory a model and caches of `length` tokens take."""
    stored = weight_count(metadata) * BYTES[weights]
    per_token = 2 * metadata["llama.attention.head_count_kv"] * head_dim(metadata)
    cache = metadata["llama.block_count"] * length * per_token * BYTES[cache_dtype]
    parts = [f"{stored / 1e6:.0f} MB of weights in {weights}", f"{cache / 1e6:.0f} MB of cache"]
    before = peak_megabytes()
    if before is None:
        return f"memory   about {(stored + cache + TEMPORARY) / 1e6:.0f} MB: {', '.join(parts)}"
    total = before + (stored + cache + TEMPORARY) / 1e6
    parts.append(f"{before:.0f} MB of Python, libraries and vocabulary")
    return f"memory   about {total:.0f} MB: {', '.join(parts)}"


def time_needed(model, caches, prompt, tokens):
    """Return a line that says how long `tokens` after a prompt will take, from a short trial.

    The trial fills `caches`, which are of the kind that the text will have.
    """
    trial = min(prompt, TRIAL)
    for _ in range(2):  # the first time, memory and threads are cold
        reading = seconds(lambda: model(np.zeros((1, trial), int), caches)) / trial
        writing = seconds(lambda: write(model, WRITTEN, caches)) / WRITTEN
    total = prompt * reading + tokens * writing
    return (
        f"time     about {total:.1f} s for {tokens} tokens: {1 / writing:.0f} tokens/s "
        f"after a prompt of {prompt}, as measured now; longer texts are slower"
    )


def write(model, count, caches):
    """Compute `count` tokens one after the other."""
    for _ in range(count):
        model.logits(model(np.zeros((1, 1), int), caches)[0, -1])


def seconds(function):
    """Return how long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def weight_count(metadata):
    """Return the number of weights in a model's matrices, from its sizes."""
    width = metadata["llama.embedding_length"]
    inner = metadata["llama.feed_forward_length"]
    kv_width = metadata["llama.attention.head_count_kv"] * head_dim(metadata)
    block = 2 * width * width + 2 * width * kv_width + 3 * width * inner
    vocabulary = len(metadata["tokenizer.ggml.tokens"])
    return metadata["llama.block_count"] * block + vocabulary * width


def head_dim(metadata):
    """Return the size of a head."""
    return metadata["llama.embedding_length"] // metadata["llama.attention.head_count"]


def peak_megabytes():
    """Return the most memory that this process had so far; None where the system does not tell."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # getrusage counts what a process was forked from, too
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(line[1]) * 1024 / 1e6 for line in lines if line[0] == "VmHWM:")
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
