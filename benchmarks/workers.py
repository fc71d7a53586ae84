"""Simulate many workers on any machine, from the counted work of each task.

The tasks of each call are handed out to 2 to 64 workers as regard hands them out, with the
multiply-adds and bytes of each task.

python -m benchmarks.workers [--workers 2 8 64] [--case decode] [--gflops 100] [--bandwidth 10]

Nothing is timed. A task takes as long as its operations at the speed of one worker, or as its bytes
at the bandwidth of one worker, whichever is longer. The simulation ignores caches, the time to wake
threads, and cores that share a clock or a memory bus.
"""

import argparse
import heapq

import numpy as np

import regard
from benchmarks.table.cases import CASES
from benchmarks.table.derivatives import Backward
from benchmarks.table.stages import Matmul
from regard._bench.problems import Attention

MOST_RANGES = 32  # kMostRanges in cpp/dispatch/threads/parallel_for.cpp
MIB = 1 << 20
testing = regard._core.testing


def zeros(*shape):
    """Return an array that reserves addresses and uses no memory."""
    return np.zeros(shape, np.float32)


def call_of(problem):
    """Return the call of a problem, as a function of the number of threads."""
    if isinstance(problem, Matmul):
        batch = (problem.batch,) if problem.batch else ()
        a = zeros(*batch, problem.rows, problem.depth)
        b = zeros(*batch, problem.depth, problem.columns)
        return lambda threads: regard.matmul(a, b, threads=threads)
    batch, dim = problem.batch, problem.head_dim
    query = zeros(batch, problem.heads, problem.q_len, dim)
    key = zeros(batch, problem.kv_heads, problem.kv_len, dim)
    options = {"is_causal": problem.is_causal}
    if isinstance(problem, Backward):
        lse = zeros(batch, problem.heads, problem.q_len)
        arrays = query, query, key, key, query, lse
        return lambda threads: regard.scaled_dot_product_attention_backward(
            *arrays, threads=threads, **options
        )
    return lambda threads: regard.scaled_dot_product_attention(
        query, key, key, threads=threads, **options
    )


def cases():
    """Yield the cases of `benchmarks.table` that are large enough for many workers."""
    for case in CASES:
        problem = case.problem
        is_timed_alone = not getattr(problem, "with_forward", False)
        if isinstance(problem, Attention | Matmul) and is_timed_alone and problem.flops > 1e7:
            yield case.name, problem


def count(call, workers):
    """Return the loops of a call, and the bytes of memory that it needs for its threads."""
    testing.release_scratch()
    testing.scratch_use()
    testing.begin_counting()
    try:
        call(workers)
    finally:
        loops = testing.end_counting()
    return [loop for loop in loops if loop[2]], testing.scratch_use()["most_bytes"]


def end_of(costs, workers, by_range):
    """Return the time at which the last worker is done. A worker takes the next task as soon as it
    is free: the first remaining task, or the first of its range, then of the next range."""
    ranges = min(workers, MOST_RANGES) if by_range else 1
    ends = [len(costs) * (i + 1) // ranges for i in range(ranges)]
    begins = [0, *ends[:-1]]
    free = [(0.0, worker, worker * ranges // workers, 0) for worker in range(workers)]
    heapq.heapify(free)
    last = 0.0
    while free:
        now, worker, at, passed = heapq.heappop(free)
        while passed < ranges and begins[at] >= ends[at]:
            at, passed = (at + 1) % ranges, passed + 1
        if passed == ranges:
            last = max(last, now)
            continue
        cost = costs[begins[at]]
        begins[at] += 1
        heapq.heappush(free, (now + cost, worker, at, passed))
    return last


def simulate(call, workers, gflops, bandwidth):
    """Return load balance, tail, number of tasks, and the memory and bandwidth of each worker."""
    loops, memory = count(call, workers)
    total = time = longest = moved = tasks = 0
    for threads, by_range, counted in loops:
        costs = [max(2e-9 * m / gflops, 1e-9 * b / bandwidth) for m, b in counted]
        busy = max(1, min(threads, len(costs)))
        total += sum(costs)
        time += end_of(costs, busy, by_range)
        longest = max(longest, *costs)
        moved += sum(b for _, b in counted)
        tasks += len(costs)
    ideal = total / workers
    return {
        "balance": ideal / time,
        "tail": longest / ideal,
        "tasks": tasks,
        "loops": len(loops),
        "memory": memory / workers / MIB,
        "bandwidth": moved * 1e-9 / time / workers,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--case", action="append", help="any part of a name; repeatable")
    parser.add_argument("--gflops", type=float, default=100, help="the speed of one worker")
    parser.add_argument("--bandwidth", type=float, default=10, help="GB/s that one worker reads")
    parser.add_argument("--target", default=regard.active_target(), choices=regard.cpu_targets())
    options = parser.parse_args()
    testing.set_target(options.target)
    most = max(options.workers)
    print(f"{options.target}, workers of {options.gflops:g} GFLOP/s and {options.bandwidth:g} GB/s")
    print(f"balance: ideal time / time; then, of {most} workers: tasks in loops, the longest task")
    print("relative to the ideal time, MiB of memory and GB/s of each worker\n")
    heads = [*(f"{n:d}" for n in options.workers), "tasks", "loops", "tail", "MiB", "GB/s"]
    print(f"| case | {' | '.join(heads)} |")
    print(f"|---|{'---|' * len(heads)}")
    for name, problem in cases():
        if options.case and not any(part in name for part in options.case):
            continue
        call = call_of(problem)
        results = [simulate(call, n, options.gflops, options.bandwidth) for n in options.workers]
        last = results[options.workers.index(most)]
        cells = [f"{result['balance']:.2f}" for result in results]
        cells += [f"{last['tasks']}", f"{last['loops']}", f"{last['tail']:.2f}"]
        cells += [f"{last['memory']:.2f}", f"{last['bandwidth']:.1f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
