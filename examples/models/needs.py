"""Estimate the memory and time that a Llama model needs, before it uses them."""

import pathlib
import sys
import time

import numpy as np

# Bytes per number: int8 has a scale for 64 numbers, q4_1 a scale and a minimum for 32.
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1 + 4 / 64}
BYTES |= {"float8_e4m3fn": 1, "q4_1": (4 + 16 / 32 + 16 / 32) / 8}
TRIAL = 32  # most tokens of a prompt that are read to measure the speed
WRITTEN = 8  # tokens that are written to measure the speed
TEMPORARY = 15e6  # bytes: blocks of weights while they are read, activations


def memory_needed(model, weights, cache_dtype, length):
    """Return a line with the memory that a model and caches of `length` tokens need."""
    stored = model.num_parameters * BYTES[weights]
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim
    cache = length * per_token * BYTES[cache_dtype]
    parts = [f"{stored / 1e6:.0f} MB of weights in {weights}", f"{cache / 1e6:.0f} MB of cache"]
    before = megabytes("VmRSS:")  # the memory of the file's header has been used and freed
    if before is None:
        return f"memory   about {(stored + cache + TEMPORARY) / 1e6:.0f} MB: {', '.join(parts)}"
    total = before + (stored + cache + TEMPORARY) / 1e6
    parts.append(f"{before:.0f} MB of Python, libraries and vocabulary")
    return f"memory   about {total:.0f} MB: {', '.join(parts)}"


def time_needed(model, caches, prompt, tokens):
    """Return a line with the expected time for `tokens` after a prompt, from a short trial.

    The trial fills `caches`, which have the same options as the caches for the text.
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
    """Compute `count` tokens one after another."""
    for _ in range(count):
        model.logits(model(np.zeros((1, 1), int), caches)[0, -1])


def seconds(function):
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def megabytes(kind="VmHWM:"):
    """Return the peak memory of this process, or on Linux another kind; None if it is unknown."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # getrusage also counts the process that this one was forked from
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(line[1]) * 1024 / 1e6 for line in lines if line[0] == kind)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
