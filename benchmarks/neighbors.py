"""Time alternating calls of regard and NumPy's BLAS in one process.

Their threads share the cores: each call is timed after a call of the same kind and after a call of
the other kind.

python benchmarks/neighbors.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import regard


def median_ms(timed: Callable[[], object], before: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        timed()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 12, 512, 64), dtype=np.float32) for _ in range(3))
    a = rng.standard_normal((512, 512), dtype=np.float32)

    def attend():
        return regard.scaled_dot_product_attention(query, key, value)

    def multiply():
        return a @ a

    print(f"attention after attention    {median_ms(attend, attend, rounds):7.2f} ms")
    print(f"attention after NumPy matmul {median_ms(attend, multiply, rounds):7.2f} ms")
    print(f"NumPy matmul after itself    {median_ms(multiply, multiply, rounds):7.2f} ms")
    print(f"NumPy matmul after attention {median_ms(multiply, attend, rounds):7.2f} ms")


if __name__ == "__main__":
    main()
