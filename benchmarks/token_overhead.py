"""Measure the overhead of a token outside the kernel: `append` and `attend` of the smallest shapes.

python benchmarks/token_overhead.py

Times are in microseconds, the best of 40 runs of 100 tokens, including the pages that these need.
"""

import time

import numpy as np

import regard

TOKENS, TURNS = 100, 40
KINDS = {
    "growing": {},
    "capacity": {"capacity": 512},
    "pages of 16": {"page_size": 16},
    "window": {"keep_last": 100},
    "float16": {"dtype": "float16"},
    "int8": {"dtype": "int8"},
}


def microseconds(options, attends):
    key, query = np.ones((2, 1, 1, 1, 8), np.float32)
    best = float("inf")
    for _ in range(TURNS):
        cache = regard.KVCache(1, 1, 8, **options)
        cache.append(key, key)
        begin = time.perf_counter()
        for _ in range(TOKENS):
            cache.append(key, key)
            if attends:
                cache.attend(query)
        best = min(best, (time.perf_counter() - begin) / TOKENS)
    return 1e6 * best


def main():
    print("cache         append  append and attend")
    for name, options in KINDS.items():
        print(
            f"{name:12} {microseconds(options, False):7.1f} {microseconds(options, True):18.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
