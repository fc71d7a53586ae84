"""Time growing a cache to 16384 tokens, 512 at a time, by page size.

python benchmarks/growing.py

The cache has 32 key heads of 128 dimensions in float32, 512 MB in total. The last columns report
the GB/s of attending with one query, and the time to append everything again after truncation, when
the memory is already allocated.
"""

import statistics
import time

import numpy as np

import regard

HEADS, TOKENS, STEP, DIM = 32, 16384, 512, 128
TURNS = 20


def seconds(call, *arguments):
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def main():
    random = np.random.default_rng(0)
    new = random.standard_normal((1, HEADS, STEP, DIM), dtype=np.float32)
    query = random.standard_normal((1, HEADS, 1, DIM), dtype=np.float32)
    print("pages      all  longest  attending    again")
    for page_size in (16, 192, 1024):
        cache = regard.KVCache(1, HEADS, DIM, page_size=page_size)
        appends = [seconds(cache.append, new, new) for _ in range(TOKENS // STEP)]
        attend = statistics.median(seconds(cache.attend, query) for _ in range(TURNS))
        cache.truncate(0)
        again = sum(seconds(cache.append, new, new) for _ in range(TOKENS // STEP))
        speed = 2 * 4 * HEADS * TOKENS * DIM / attend / 1e9
        print(
            f"{page_size:>5} {sum(appends):6.2f} s {1e3 * max(appends):5.0f} ms "
            f"{speed:5.1f} GB/s {again:6.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
