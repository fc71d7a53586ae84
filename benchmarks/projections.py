"""Measure how fast projections read 32-bit, 16-bit and 8-bit weights, in products with a few rows.

python benchmarks/projections.py
python benchmarks/projections.py --sizes 576x576 49152x576 --rows 1 --threads 1
python examples/generate.py --tokens 200    # tokens/s of a whole model

The columns report GB/s of the weight's own bytes, and the share of the machine's read bandwidth. As
in a model, each product has a different weight, and together the weights exceed the caches. The
last column is NumPy's product with a float32 weight. Each column is measured in its own process,
since NumPy's threads keep a CPU busy for a while after a product. Numbers are the best of several
rounds.
"""

import argparse
import multiprocessing
import time

import numpy as np

import regard
from regard import _core

KINDS = ["float32", "float16", "bfloat16", "int8"]
SIZES = ["576x576", "1536x576", "576x1536", "2048x2048", "4096x4096", "49152x576"]
ROUNDS = 7


def main():
    asked = arguments()
    threads = asked.threads or regard.get_num_threads()
    bandwidth = _core.read_bandwidth(asked.megabytes * 1_000_000, threads)
    print(f"{regard.active_target()}, {threads} threads, read bandwidth {bandwidth / 1e9:.1f} GB/s")
    kinds = [kind for kind in KINDS if kind != "bfloat16" or has_bfloat16()]
    titles = [*kinds, "NumPy"]
    print(f"{'weight':>12} rows" + "".join(f"{title:>16}" for title in titles))
    for size in asked.sizes:
        d_out, d_in = map(int, size.split("x"))
        for rows in asked.rows:
            times = {kind: measured(kind, d_out, d_in, rows, asked) for kind in titles}
            print(f"{size:>12} {rows:4}" + cells(times, bandwidth), flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="d_out x d_in, such as 576x1536")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--megabytes", type=int, default=256, help="total size of all weights")
    return parser.parse_args()


def cells(times, bandwidth):
    return "".join(
        f"{size / seconds / 1e9:9.1f} {100 * size / seconds / bandwidth:4.0f}% "
        for size, seconds in times.values()
    )


def measured(kind, *problem):
    """Return the bytes of a weight and the seconds of a product, measured in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(product_time, (kind, *problem))


def product_time(kind, d_out, d_in, rows, asked):
    rng = np.random.default_rng(0)
    first = kept_as(kind, rng.standard_normal((d_out, d_in), dtype=np.float32))
    count = max(1, asked.megabytes * 1_000_000 // first.nbytes)
    weights = [first, *(copied(first) for _ in range(count - 1))]
    x = rng.standard_normal((rows, d_in), dtype=np.float32)
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for weight in weights:
            if kind == "NumPy":
                x @ weight.T
            else:
                regard.matmul(x, weight.T, threads=asked.threads)
        best = min(best, (time.perf_counter() - begin) / count)
    return first.nbytes, best


def kept_as(kind, weight):
    if kind == "int8":
        return regard.QuantizedWeight(weight)
    if kind == "bfloat16":
        import ml_dtypes

        return weight.astype(ml_dtypes.bfloat16)
    return weight.astype("float16" if kind == "float16" else "float32")


def copied(weight):
    if isinstance(weight, regard.QuantizedWeight):
        return regard.QuantizedWeight.from_parts(weight.numbers.copy(), weight.scales)
    return weight.copy()


def has_bfloat16():
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
