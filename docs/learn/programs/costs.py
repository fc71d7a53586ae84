"""The time of each stage, compared with the least time of its operations and bytes."""

import measure
import numpy as np

query, key, value = measure.problem()
length, head_dim = query.shape
factor = np.float32(1 / np.sqrt(head_dim))
scores = query @ key.T * factor
weights = np.exp(scores)
weights /= weights.sum(axis=-1, keepdims=True)

square, thin = scores.nbytes, query.nbytes
product = 2 * length * length * head_dim
# For each stage: its FLOP (of multiply-adds), and the bytes that it reads and writes.
stages = {
    "query @ key.T": (lambda: query @ key.T, product, 2 * thin + square),
    "scores * factor": (lambda: scores * factor, 0, 2 * square),
    "exp(scores)": (lambda: np.exp(scores), 0, 2 * square),
    "sum, divide": (lambda: weights / weights.sum(axis=-1, keepdims=True), 0, 3 * square),
    "weights @ value": (lambda: weights @ value, product, square + 2 * thin),
}

if __name__ == "__main__":
    peak, bandwidth = measure.peak(), measure.bandwidth()
    print(f"one core: {peak / bandwidth:.0f} FLOP in the time that a byte takes from memory")
    print(f"scores: {square / 2**20:.1f} MiB; the other arrays: {4 * thin / 2**20:.1f} MiB")
    times = {name: measure.median_time(call) for name, (call, _, _) in stages.items()}
    total = sum(times.values())
    print(f"\n{'stage':17}{'of the time':>12}{'of the peak':>13}{'of the bandwidth':>18}")
    for name, (_, flop, moved) in stages.items():
        of_peak = f"{flop / times[name] / peak:.0%}" if flop else "-"
        of_bandwidth = moved / times[name] / bandwidth
        print(f"{name:17}{times[name] / total:>12.0%}{of_peak:>13}{of_bandwidth:>18.0%}")

    needed = measure.work() / peak
    print(f"\nthe two products at the peak would take {needed / total:.0%} of this time")
    if 2 * square / times["scores * factor"] > bandwidth:
        measure.cannot_show("the cost of memory, because the scores fit in a cache")
    fused = 4 * thin / bandwidth
    print(
        f"reading query, key and value and writing the output once: {fused / total:.1%} of it"
    )
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=length * np.finfo(np.float32).eps)
    if not measure.work() == 2 * product or not 0 < needed < total:
        raise SystemExit("the operations, the peak and the time contradict each other")
