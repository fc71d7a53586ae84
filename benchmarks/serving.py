"""Time steps of many texts: medians of interleaved calls.

python benchmarks/serving.py [--heads 32 --kv-heads 8 --dim 128] [--threads N] [--rounds 15]

- a step with a chunk of a prompt and one token of each other text, relative to separate calls for
  the chunk and the tokens, and to the same step padded to the length of the chunk
- decoding texts of different lengths, relative to texts of equal lengths with as many keys
- the overhead of a step: append_ragged and attend_ragged with almost no computation
"""

import argparse

import numpy as np
from interleaved import median

import regard

TEXTS = 32


def arrays(options, tokens, heads):
    return np.random.default_rng(0).standard_normal((tokens, heads, options.dim), np.float32)


def filled(options, lengths):
    cache = regard.KVCache(len(lengths), options.kv_heads, options.dim)
    starts = np.cumsum([0, *lengths])
    rows = arrays(options, starts[-1], options.kv_heads)
    cache.append_ragged(rows, rows, starts)
    return cache


def mixed(options):
    counts = [options.chunk, *[1] * (TEXTS - 1)]
    starts = np.cumsum([0, *counts])
    cache = filled(options, [options.keys] * TEXTS)
    prompt, texts = cache.fork([0]), cache.fork(range(1, TEXTS))
    query = arrays(options, starts[-1], options.heads)
    chunk = np.ascontiguousarray(query[: options.chunk].swapaxes(0, 1))[None]
    single = query[options.chunk :, :, None]
    padded = np.zeros((TEXTS, options.heads, options.chunk, options.dim), np.float32)
    offsets = options.keys - np.array(counts)
    threads = {"threads": options.threads}
    found = median(
        options.rounds,
        {
            "step": lambda: cache.attend_ragged(query, starts, **threads),
            "chunk": lambda: prompt.attend(chunk, **threads),
            "tokens": lambda: texts.attend(single, **threads),
            "padded": lambda: cache.attend(padded, query_offset=offsets, **threads),
        },
    )
    parts = found["chunk"] + found["tokens"]
    print(
        f"a chunk of {options.chunk} and {TEXTS - 1} tokens, {options.keys} keys each: "
        f"{found['step'] * 1e3:.2f} ms, {found['step'] / parts:.3f} of its parts "
        f"({found['chunk'] * 1e3:.2f} + {found['tokens'] * 1e3:.2f} ms), "
        f"{found['padded'] / found['step']:.1f} times as fast as padded"
    )
    for name, explained in (
        ("packed", cache.explain(query, starts=starts)),
        ("padded", cache.explain(padded, query_offset=offsets)),
    ):
        print(f"  {name}: {explained.flops / 1e9:.2f} GFLOP")


def unequal(options):
    lengths = np.random.default_rng(1).permutation(np.linspace(100, 8000, TEXTS).astype(int))
    equal = [int(lengths.mean())] * TEXTS
    caches = {"different": filled(options, lengths), "equal": filled(options, equal)}
    query, starts = arrays(options, TEXTS, options.heads), np.arange(TEXTS + 1)
    found = median(
        options.rounds,
        {
            name: lambda cache=cache: cache.attend_ragged(query, starts, threads=options.threads)
            for name, cache in caches.items()
        },
    )
    rates = {
        name: 2 * int(cache.lengths.sum()) * options.kv_heads * options.dim * 4 / found[name] / 1e9
        for name, cache in caches.items()
    }
    print(
        f"{TEXTS} texts of 100 to 8000 keys: {rates['different']:.1f} GB/s, "
        f"{rates['different'] / rates['equal']:.3f} of texts of one length ({rates['equal']:.1f})"
    )


def python_of_a_step(rounds):
    """Time steps with a head_dim of 1: single tokens, or a chunk of 2 tokens and single tokens."""
    for name, counts in (("tokens", [1] * TEXTS), ("a chunk and tokens", [2, *[1] * (TEXTS - 1)])):
        cache = regard.KVCache(TEXTS, 1, 1, page_size=16 * 1024)
        starts = np.cumsum([0, *counts])
        rows, query = np.ones((2, starts[-1], 1, 1), np.float32)
        cache.append_ragged(rows, rows, starts)
        found = median(
            rounds,
            {
                "append": lambda cache=cache, rows=rows, starts=starts: cache.append_ragged(
                    rows, rows, starts
                ),
                "attend": lambda cache=cache, query=query, starts=starts: cache.attend_ragged(
                    query, starts, window=(0, 0), threads=1
                ),
            },
        )
        shown = ", ".join(f"{each} {seconds * 1e6:.1f} us" for each, seconds in found.items())
        print(f"{TEXTS} texts, {name}: {shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--keys", type=int, default=2000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{regard.active_target()}, {options.threads or regard.get_num_threads()} threads")
    mixed(options)
    unequal(options)
    python_of_a_step(options.rounds)


if __name__ == "__main__":
    main()
