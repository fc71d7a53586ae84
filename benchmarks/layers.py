"""Time alternating calls of regard and NumPy's BLAS, in each threading layer.

python benchmarks/layers.py [--rounds 5] [--calls 40] [--threads 2] [--layers pool openmp]

A process has one layer, so each measurement runs in a fresh process with the same number of threads
for all libraries. The layers are interleaved, and their order changes from round to round. A
process times each call after a call of the same kind and after a call of the other kind, since
regard's and NumPy's threads share the cores. The table reports the median over rounds, and in
parentheses the median of the rounds' ratios to the first layer, with their extremes. Settings of an
OpenMP runtime, such as OMP_WAIT_POLICY=passive, come from the environment.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import regard
from regard._bench.fresh_process import run_in_fresh_process

PATIENCE = 300.0


def median_ms(timed: Callable[[], object], before: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        before()
        start = time.perf_counter()
        timed()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def measure(calls: int, _send: object) -> dict[str, object]:
    """Time the calls in this process; return the times and the threading layer."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, 12, 512, 64), dtype=np.float32) for _ in range(3))
    few, past = (rng.standard_normal((1, 8, n, 64), dtype=np.float32) for n in (1, 1024))
    a = rng.standard_normal((512, 512), dtype=np.float32)

    def attend():
        return regard.scaled_dot_product_attention(query, key, value)

    def decode():
        return regard.scaled_dot_product_attention(few, past, past)

    def multiply():
        return a @ a

    turns = {
        "attention after attention": (attend, attend),
        "attention after NumPy matmul": (attend, multiply),
        "decoding after decoding": (decode, decode),
        "decoding after NumPy matmul": (decode, multiply),
        "NumPy matmul after itself": (multiply, multiply),
        "NumPy matmul after attention": (multiply, attend),
        "NumPy matmul after decoding": (multiply, decode),
    }
    for call in (attend, decode, multiply):
        call()
    times = {name: median_ms(timed, before, calls) for name, (timed, before) in turns.items()}
    return {"times": times, "layer": regard.threading_layer()._asdict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--threads", type=int, default=regard.get_num_threads())
    parser.add_argument("--layers", nargs="+", default=["pool", "openmp"])
    options = parser.parse_args()

    rounds: list[dict[str, dict[str, float]]] = []
    runtimes = {}
    for number in range(options.rounds):
        start = number % len(options.layers)
        rounds.append({})
        for layer in options.layers[start:] + options.layers[:start]:
            answer = run_in_fresh_process(
                measure,
                options.calls,
                threads=options.threads,
                patience=PATIENCE,
                environment={"REGARD_THREADING_LAYER": layer},
            )
            rounds[-1][layer] = answer["times"]
            runtimes[layer] = answer["layer"]

    print(f"{options.threads} threads, {options.rounds} processes per layer, medians in ms")
    for layer, told in runtimes.items():
        if told["runtime"]:
            print(f"{layer}: {told['runtime']}, OpenMP {told['version']}, {told['path']}")
    print()
    print(f"{'':<30}" + "".join(f"{layer:<26}" for layer in options.layers).rstrip())
    first = options.layers[0]
    for name in rounds[0][first]:
        cells = []
        for layer in options.layers:
            cell = f"{statistics.median(each[layer][name] for each in rounds):.3f}"
            if layer != first:
                ratios = [each[layer][name] / each[first][name] for each in rounds]
                middle = statistics.median(ratios)
                cell += f" ({middle:.2f}: {min(ratios):.2f} to {max(ratios):.2f})"
            cells.append(f"{cell:<26}")
        print(f"{name:<30}{''.join(cells)}".rstrip())


if __name__ == "__main__":
    main()
