"""The speed of precision="int8" relative to float32: one thread, in turns, medians of the ratios.

python benchmarks/int8.py [target]
"""

import statistics
import sys
import time

import numpy as np

import regard

SIZES = ((8, 512, 64), (2, 2048, 64), (1, 4096, 64), (2, 2048, 128), (1, 4096, 128))
TURNS = 15


def seconds(query, key, value, precision):
    begin = time.perf_counter()
    regard.scaled_dot_product_attention(query, key, value, threads=1, precision=precision)
    return time.perf_counter() - begin


def main():
    if len(sys.argv) > 1:
        regard._core.testing.set_target(sys.argv[1])
    random = np.random.default_rng(0)
    for heads, length, dim in SIZES:
        arrays = random.standard_normal((3, heads, length, dim), dtype=np.float32)
        plan = regard.explain(*arrays, precision="int8")
        turns = [[seconds(*arrays, way) for way in (None, "int8")] for _ in range(TURNS + 2)][2:]
        plain, int8 = (statistics.median(times) for times in zip(*turns, strict=True))
        ratio = statistics.median(a / b for a, b in turns)
        print(
            f"{plan.target} ({plan.int8_instruction}) {heads}x{length}x{dim}: "
            f"{plain * 1e3:.1f} ms, int8 {int8 * 1e3:.1f} ms, {ratio:.2f}x"
        )


if __name__ == "__main__":
    main()
