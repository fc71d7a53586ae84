"""Times the forward call beside NumPy and, where installed, PyTorch: one run, interleaved, medians.

python benchmarks/forward.py [--threads 2] [--target x86_v4] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import regard

# name, batch, heads, kv_heads, length, head_dim, is_causal
CASES = [
    ("1x12x512x64", 1, 12, 12, 512, 64, False),
    ("8x12x128x64", 8, 12, 12, 128, 64, False),
    ("1x12x1024x64 causal", 1, 12, 12, 1024, 64, True),
    ("1x8x8192x64", 1, 8, 8, 8192, 64, False),
    ("1x8x4096x128", 1, 8, 8, 4096, 128, False),
    ("1x32/8x2048x128 causal", 1, 32, 8, 2048, 128, True),
    ("8x16x197x64", 8, 16, 16, 197, 64, False),
    ("1x8x64x64", 1, 8, 8, 64, 64, False),
]


def numpy_attention(query, key, value, is_causal):
    scores = query @ key.swapaxes(-1, -2)
    scores *= query.shape[-1] ** -0.5
    if is_causal:
        scores[..., ~np.tri(*scores.shape[-2:], dtype=bool)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores @ value


def engines(query, key, value, is_causal, threads) -> dict[str, Callable[[], object]]:
    group = query.shape[1] // key.shape[1]
    wide_key, wide_value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    found: dict[str, Callable[[], object]] = {
        "regard": lambda: regard.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, threads=threads
        )
    }
    if query.shape[2] <= 2048:
        found["NumPy"] = lambda: numpy_attention(query, wide_key, wide_value, is_causal)
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(array) for array in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention

    def run_torch():
        with torch.no_grad():
            return attend(*tensors, is_causal=is_causal, enable_gqa=group > 1)

    found["PyTorch"] = run_torch
    return found


# OpenBLAS's threads spin on the cores for tens of milliseconds after NumPy's last product, and an
# engine that competes with them needs more than 100 ms to find its speed again; so each runs for
# this long before it is timed.
SETTLE_SECONDS = 0.25


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            while time.perf_counter() - start < SETTLE_SECONDS:
                call()
            for _ in range(3):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def small_calls(rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((6, 2), dtype=np.float32) for _ in range(3))
    many = 2000

    def repeat(call):
        def run():
            for _ in range(many):
                call()

        return run

    calls = {
        "regard": repeat(lambda: regard.scaled_dot_product_attention(query, key, value)),
        "NumPy": repeat(lambda: numpy_attention(query, key, value, False)),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        tensors = [torch.from_numpy(array) for array in (query, key, value)]
        attend = torch.nn.functional.scaled_dot_product_attention

        def run_torch():
            with torch.no_grad():
                return attend(*tensors)

        calls["PyTorch"] = repeat(run_torch)
    return {name: seconds / many for name, seconds in medians(calls, rounds).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", choices=regard.cpu_targets())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", help="only cases whose name contains this")
    arguments = parser.parse_args()
    regard._core.set_target(arguments.target)
    peak = regard._core.fma_peak(False, arguments.threads) / 1e9
    print(
        f"{regard.active_target()}, {arguments.threads} threads, "
        f"float32 fma peak {peak:.0f} GFLOP/s"
    )
    print(f"{'case':24} {'engine':8} {'ms':>9} {'GFLOP/s':>8} {'of peak':>8} {'regard is':>10}")
    rng = np.random.default_rng(0)
    for name, batch, heads, kv_heads, length, head_dim, is_causal in CASES:
        if arguments.case and arguments.case not in name:
            continue
        query = rng.standard_normal((batch, heads, length, head_dim), dtype=np.float32)
        key = rng.standard_normal((batch, kv_heads, length, head_dim), dtype=np.float32)
        value = rng.standard_normal((batch, kv_heads, length, head_dim), dtype=np.float32)
        operations = 4 * batch * heads * length**2 * head_dim * (0.5 if is_causal else 1)
        found = medians(engines(query, key, value, is_causal, arguments.threads), arguments.rounds)
        for engine, seconds in found.items():
            rate = operations / seconds / 1e9
            print(
                f"{name:24} {engine:8} {seconds * 1e3:9.3f} {rate:8.1f} {rate / peak:8.1%} "
                f"{seconds / found['regard']:9.2f}x"
            )
    if not arguments.case:
        small = small_calls(arguments.rounds)
        for engine, seconds in small.items():
            print(
                f"{'6x2 (a notebook)':24} {engine:8} {seconds * 1e6:6.2f} us {'':8} {'':8} "
                f"{seconds / small['regard']:9.2f}x"
            )


if __name__ == "__main__":
    main()
