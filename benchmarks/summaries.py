"""Time statistics and maps of weights relative to a causal forward call, interleaved.

python benchmarks/summaries.py --length 32768 --rounds 3
"""

import argparse
import resource
import statistics

import numpy as np
from interleaved import medians, ratios

import regard


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


def calls_of(options):
    random = np.random.default_rng(0)
    shape = 1, options.heads, options.length, 64
    query, key = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
    shared = {"is_causal": True, "threads": options.threads}
    forward, summarize = regard.scaled_dot_product_attention, regard.summarize_attention
    _, lse = forward(query, key, key[..., :0], **shared, return_lse=True)
    known = {**shared, "lse": lse}
    before = peak_megabytes()
    summarize(query, key, **known)
    print(f"default statistics took {peak_megabytes() - before:.0f} MB, results included")
    value = random.standard_normal(shape, dtype=np.float32)
    tokens = np.arange(options.length) % 997
    return {
        "forward call": lambda: forward(query, key, value, **shared),
        "default statistics": lambda: summarize(query, key, **known),
        "top_k": lambda: summarize(query, key, **known, statistics="top_k"),
        "all of them": lambda: summarize(
            query, key, **known, statistics=regard.AttentionSummary._fields, tokens=tokens
        ),
        "default, lse unknown": lambda: summarize(query, key, **shared),
        "map of maxima": lambda: regard.attention_map(query, key, **known),
        "map of means": lambda: regard.attention_map(query, key, **known, reduce="mean"),
    }


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    options = arguments()
    calls = calls_of(options)
    times = medians(options.rounds, calls)
    print(f"{regard.active_target()}, {options.heads} heads x {options.length} tokens x 64, causal")
    for name, ratio in ratios(times, "forward call").items():
        milliseconds = 1e3 * statistics.median(times[name])
        print(f"{name:<22} {milliseconds:9.1f} ms {ratio:6.2f} of the forward call")


if __name__ == "__main__":
    main()
