"""The speed of precision="int8" relative to float32: one thread, in turns, medians of the ratios.

python benchmarks/int8.py [--target x86_v3] [--without-vnni] [--size 8x128x64 ...]
"""

import argparse
import statistics
import time

import numpy as np

import regard

SIZES = ((8, 512, 64), (2, 2048, 64), (1, 4096, 64), (2, 2048, 128), (1, 4096, 128))
TURNS = 15


def seconds(query, key, value, precision):
    begin = time.perf_counter()
    regard.scaled_dot_product_attention(query, key, value, threads=1, precision=precision)
    return time.perf_counter() - begin


def size(text):
    heads, length, dim = map(int, text.split("x"))
    return heads, length, dim


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default=regard.active_target(), choices=regard.cpu_targets())
    parser.add_argument("--without-vnni", action="store_true", help="as on a CPU without it")
    parser.add_argument(
        "--size", nargs="+", type=size, default=SIZES, help="heads x length x dim, such as 8x128x64"
    )
    options = parser.parse_args()
    regard._core.testing.set_target(options.target)
    regard._core.testing.forbid_int8(options.without_vnni)
    random = np.random.default_rng(0)
    for heads, length, dim in options.size:
        arrays = random.standard_normal((3, heads, length, dim), dtype=np.float32)
        plan = regard.explain(*arrays, precision="int8")
        turns = [[seconds(*arrays, way) for way in (None, "int8")] for _ in range(TURNS + 2)][2:]
        plain, int8 = (statistics.median(times) for times in zip(*turns, strict=True))
        ratio = statistics.median(a / b for a, b in turns)
        print(
            f"{plan.target} ({plan.instruction}) {heads}x{length}x{dim}: "
            f"{plain * 1e3:.1f} ms, int8 {int8 * 1e3:.1f} ms, {ratio:.2f}x"
        )


if __name__ == "__main__":
    main()
