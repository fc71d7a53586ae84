"""Time attention to the pages of other engines relative to a KVCache: medians, interleaved calls.

python benchmarks/foreign_pages.py [--heads 8 --kv-heads 2 --dim 64] [--keys 8000] [--rounds 15]

Pages have several sizes and both layouts, and are in the pool in random order or one after another.
A step has one token for each of 8 texts, or 256 tokens for each.
"""

import argparse

import numpy as np
from interleaved import median

import regard

TEXTS = 8
CHUNK = 256


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--keys", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    shape = (TEXTS, options.kv_heads, options.keys, options.dim)
    cache = regard.KVCache(TEXTS, options.kv_heads, options.dim)
    cache.append(*rng.standard_normal((2, *shape), dtype=np.float32))
    queries = {
        "token": rng.standard_normal((TEXTS, options.heads, 1, options.dim), dtype=np.float32),
        "chunk": rng.standard_normal((TEXTS, options.heads, CHUNK, options.dim), dtype=np.float32),
    }
    print(f"relative to a KVCache ({regard.active_target()}): pages, layout, order, token, chunk")
    for size in (192, 16, 8, 4, 1):
        columns = -(-options.keys // size)
        for layout in ("HND", "NHD"):
            page = (size, options.kv_heads) if layout == "NHD" else (options.kv_heads, size)
            shape = (TEXTS * columns, *page, options.dim)
            pages = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]
            for order in ("random", "in order"):
                count = TEXTS * columns
                numbers = rng.permutation(count) if order == "random" else np.arange(count)
                table = numbers.reshape(TEXTS, columns), np.full(TEXTS, options.keys)
                named = {"layout": layout, "threads": options.threads}
                ratios = []
                for name, query in queries.items():
                    found = median(
                        options.rounds if name == "token" else max(3, options.rounds // 5),
                        {
                            "cache": lambda query=query: cache.attend(
                                query, threads=options.threads
                            ),
                            "pages": lambda query=query, pages=pages, table=table, named=named: (
                                regard.paged_attention(query, *pages, *table, **named)
                            ),
                        },
                    )
                    ratios.append(found["pages"] / found["cache"])
                print(f"{size:5} {layout} {order:9} {ratios[0]:.2f} {ratios[1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
