"""Time appending a prompt of 512 tokens, and a single token, compared with attending to the prompt.

python benchmarks/appending.py

Medians for 8 key heads of 128 dimensions and 32 query heads, with float32 inputs and all threads.
"""

import statistics
import time

import numpy as np

import regard

TURNS = 25


def seconds(call, *arguments):
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def main():
    random = np.random.default_rng(0)
    query = random.standard_normal((1, 32, 512, 128), dtype=np.float32)
    key, value = random.standard_normal((2, 1, 8, 512, 128), dtype=np.float32)
    token = key[:, :, :1], value[:, :, :1]
    print("stored   pages  512 tokens  attending    a token")
    for dtype in ("float32", "float16", "int8"):
        for page_size in (16, 192):
            cache = regard.KVCache(1, 8, 128, dtype=dtype, page_size=page_size)
            prompts, attends, tokens = [], [], []
            for _ in range(TURNS):
                cache.truncate(0)
                prompts.append(seconds(cache.append, key, value))
                attends.append(seconds(cache.attend, query))
                tokens += [seconds(cache.append, *token) for _ in range(20)]
            prompt, attend, one = map(statistics.median, (prompts, attends, tokens))
            print(
                f"{dtype:8} {page_size:>5} {1e3 * prompt:8.2f} ms {1e3 * attend:7.2f} ms "
                f"{1e6 * one:7.1f} us"
            )


if __name__ == "__main__":
    main()
