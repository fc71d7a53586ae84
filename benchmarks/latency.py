"""Measure the latency of small calls while another Python thread makes long calls.

python benchmarks/latency.py [--seconds 10] [--threads 2] [--pause 200e-6]

Small calls: a call of a notebook's size (6x3, float32), and a decode of one query, 32 heads over 8,
with 128 columns and 128 keys. Long calls: 4x8x2048x64, one after another on another Python thread.
Each small call is timed with and without concurrent long calls, for regard, and for PyTorch if it
is installed, with PyTorch's long calls. The columns are percentiles of microseconds per call. The
machine should be otherwise idle.
"""

import argparse
import importlib.util
import threading
import time

import numpy as np

import regard

PERCENTILES = (50, 90, 99, 99.9, 100)
WARM_UP = 0.5  # seconds


def shapes():
    """Return the query, and the key that is also the value, of each call."""
    random = np.random.default_rng(0)

    def drawn(*shape):
        return random.standard_normal(shape, dtype=np.float32)

    small = {
        "notebook 6x3": (drawn(1, 6, 3), drawn(1, 6, 3)),
        "decode 1x32/8x128x128": (drawn(1, 32, 1, 128), drawn(1, 8, 128, 128)),
    }
    return small, (drawn(4, 8, 2048, 64), drawn(4, 8, 2048, 64))


def with_regard(query, key, threads):
    return lambda: regard.scaled_dot_product_attention(query, key, key, threads=threads)


def with_torch(query, key, threads):
    import torch

    torch.set_num_threads(threads)
    attend = torch.nn.functional.scaled_dot_product_attention
    query, key = torch.from_numpy(query)[None], torch.from_numpy(key)[None]
    if query.ndim > 4:
        query, key = query[0], key[0]
    return lambda: attend(query, key, key, enable_gqa=query.shape[-3] != key.shape[-3])


def latencies(call, seconds, pause):
    """Return the durations of many calls, in microseconds."""
    taken = []
    end = time.perf_counter() + WARM_UP
    while time.perf_counter() < end:
        call()
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        call()
        taken.append(1e6 * (time.perf_counter() - began))
        time.sleep(pause)
    return taken


def beside(long_call, measure):
    """Return the result of `measure` while another thread makes long calls, and their number."""
    stop, made, failures = threading.Event(), [0], []

    def work():
        try:
            while not stop.is_set():
                long_call()
                made[0] += 1
        except BaseException as failure:
            failures.append(failure)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        return measure(), made[0]
    finally:
        stop.set()
        worker.join()
        if failures:
            raise failures[0]


def row(name, taken, more=""):
    numbers = "".join(f"{n:10.1f}" for n in np.percentile(taken, PERCENTILES))
    print(f"{name:44}{numbers}{len(taken):9}{more}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="for each row (default: 10)")
    parser.add_argument("--threads", type=int, default=regard.get_num_threads(), help="per call")
    parser.add_argument(
        "--pause", type=float, default=200e-6, help="seconds between small calls (default: 200e-6)"
    )
    options = parser.parse_args()
    engines = {"regard": with_regard}
    if importlib.util.find_spec("torch"):
        engines["torch"] = with_torch
    small, (query, key) = shapes()
    print(f"target {regard.active_target()}, {options.threads} threads, layer "
          f"{regard.threading_layer().name}; microseconds")  # fmt: skip
    heads = [f"p{p:g}" if p < 100 else "max" for p in PERCENTILES]
    print(" " * 44 + "".join(f"{head:>10}" for head in heads) + "    calls")
    for engine, prepared in engines.items():
        long_call = prepared(query, key, options.threads)
        began = time.perf_counter()
        long_call()
        length = time.perf_counter() - began
        for name, (q, k) in small.items():
            call = prepared(q, k, options.threads)

            def measure(call=call):
                return latencies(call, options.seconds, options.pause)

            row(f"{engine}, {name}, idle", measure())
            taken, made = beside(long_call, measure)
            row(f"{engine}, {name}, under load", taken, f"  ({made} long calls)")
        print(f"{engine}: the first long call took {1e3 * length:.0f} ms")


if __name__ == "__main__":
    main()
