"""Time a narrow window relative to equally many operations without one: medians, interleaved.

python benchmarks/windows.py [--target x86_v3] [--window 256] [--threads 1 2]
"""

import argparse
import statistics

import numpy as np
from interleaved import medians, ratios

import regard

HEADS, LENGTH, PLAIN_LENGTH, HEAD_DIM = 2, 65536, 4096, 64
TURNS = 9


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default=regard.active_target(), choices=regard.cpu_targets())
    parser.add_argument("--window", type=int, default=256, help="keys that a query sees")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options = parser.parse_args()
    regard._core.testing.set_target(options.target)
    random = np.random.default_rng(0)
    arrays = random.standard_normal((3, HEADS, LENGTH, HEAD_DIM), dtype=np.float32)
    parts = np.ascontiguousarray(arrays[:, :, :PLAIN_LENGTH])
    out, plain_out = np.empty_like(arrays[0]), np.empty_like(parts[0])
    pairs = LENGTH * options.window - options.window * (options.window - 1) // 2
    narrow = {"is_causal": True, "window": (options.window - 1, 0)}
    for threads in options.threads:
        times = medians(
            TURNS,
            {
                "window": lambda threads=threads: regard.scaled_dot_product_attention(
                    *arrays, out=out, threads=threads, **narrow
                ),
                "plain": lambda threads=threads: regard.scaled_dot_product_attention(
                    *parts, out=plain_out, threads=threads
                ),
            },
        )
        ratio = ratios(times, "plain")["window"] * PLAIN_LENGTH**2 / pairs
        window, plain = (
            4e-9 * HEADS * HEAD_DIM * work / statistics.median(own)
            for work, own in zip((pairs, PLAIN_LENGTH**2), times.values(), strict=True)
        )
        print(
            f"{options.target}, {threads} thread{'s' * (threads > 1)}: {ratio:.2f} times the time "
            f"({window:.0f} instead of {plain:.0f} GFLOP/s)"
        )


if __name__ == "__main__":
    main()
