"""Time `regard.dask` on a local cluster of 1 and 2 workers against single calls.

    python benchmarks/dask_scaling.py [--tokens 16384] [--chunk 2048] [--workers 1 2] [--rounds 5]

Every worker is a process with one thread. The inputs are in the workers' memory before the clock
starts, and the results stay there. The single calls use as many threads as there are workers. All
measurements are interleaved, so that a change of the machine's speed affects all of them alike.
"""

import argparse
import statistics
import time

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

import regard
import regard.dask

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
FORWARD, BOTH = "forward", "forward and backward"


def graph(arrays, what, number):
    """Return the collections of a measurement. Each measurement has a different scale, and thus
    different task names: results that are still in the workers' memory would not be computed
    again."""
    query, key, value = arrays
    options = {"is_causal": True, "scale": HEAD_DIM**-0.5 * (1 + number / 1000)}
    output, lse = regard.dask.scaled_dot_product_attention(
        query, key, value, return_lse=True, **options
    )
    if what == FORWARD:
        return [output]
    gradients = regard.dask.scaled_dot_product_attention_backward(
        output, query, key, value, output, lse, **options
    )
    return list(gradients[:3])


def single(arrays, threads, what):
    options = {"is_causal": True, "threads": threads}
    state = regard.scaled_dot_product_attention(*arrays, return_lse=True, **options)
    if what == BOTH:
        regard.scaled_dot_product_attention_backward(state[0], *arrays, *state, **options)


def seconds(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    shapes = [(heads, given.tokens, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    print(f"{given.tokens} causal tokens in chunks of {given.chunk}, {HEADS} heads of {HEAD_DIM}")
    times: dict[tuple[str, str, int], list[float]] = {}
    tasks = {}
    for count in given.workers:
        settings = {
            "processes": True,
            "threads_per_worker": 1,
            "dashboard_address": None,
            "memory_limit": 0,
        }
        with LocalCluster(n_workers=count, **settings) as cluster, Client(cluster) as client:
            client.wait_for_workers(count)
            draw = da.random.default_rng(0).standard_normal
            chunked = [
                draw(shape, chunks=(-1, given.chunk, -1)).astype(np.float32) for shape in shapes
            ]
            chunked = client.persist(chunked)
            wait([*chunked, *client.persist(graph(chunked, BOTH, 0))])  # everything is imported
            for number, what in enumerate([FORWARD, BOTH] * given.rounds, 1):
                collection = graph(chunked, what, number)
                tasks[what] = len({k for x in collection for k in x.__dask_graph__()})
                took = seconds(lambda: wait(client.persist(collection)))  # noqa: B023
                times.setdefault((what, "Dask", count), []).append(took)
                took = seconds(lambda: single(arrays, count, what))  # noqa: B023
                times.setdefault((what, "single call", count), []).append(took)
    print(f"{'':22}{'':13}{'workers':>8}{'median s':>10}{'speedup':>9}{'of the single call':>20}")
    for (what, how, count), measured in sorted(times.items()):
        median = statistics.median(measured)
        first = statistics.median(times[what, how, given.workers[0]])
        share = statistics.median(times[what, "single call", count]) / median
        print(f"{what:22}{how:13}{count:8}{median:10.3f}{first / median:9.2f}{share:20.2f}")
    print(f"tasks, including inputs: {tasks[FORWARD]} and {tasks[BOTH]}")


if __name__ == "__main__":
    main()
