"""One query: the keys and values are read once, and reading them is what takes the time."""

import itertools

import measure
import numpy as np
import stable

from regard import scaled_dot_product_attention

HEADS, KEYS, HEAD_DIM = 8, 8192, 64


def median_share(arrays, threads: int, attend) -> float:
    """Return the bytes of keys and values a second, as a share of the read bandwidth."""
    sets = itertools.cycle(arrays)  # more than caches hold: a call finds its keys in memory
    seconds = measure.median_time(lambda: attend(*next(sets), threads), 3 * len(arrays))
    moved = arrays[0][1].nbytes + arrays[0][2].nbytes
    return moved / seconds / measure.bandwidth(threads)


def in_numpy(query, key, value, threads: int) -> np.ndarray:
    """Attend with NumPy, head by head."""
    heads = zip(query, key, value, strict=True)
    return np.stack([stable.attention(*(a.astype("f", copy=False) for a in h)) for h in heads])


def in_regard(query, key, value, threads: int) -> np.ndarray:
    """Attend with the shipped kernel for few queries."""
    return scaled_dot_product_attention(query, key, value, threads=threads)


if __name__ == "__main__":
    flop, moved = 4 * HEAD_DIM, 2 * HEAD_DIM * 4  # for a key: two products; it and its value
    print(f"a query does {flop / moved:.1f} FLOP for each byte of keys and values;")
    print(f"this core could do {measure.peak() / measure.bandwidth():.0f} in the time\n")

    normal = np.random.default_rng(2).standard_normal
    sets = [
        [normal((HEADS, rows, HEAD_DIM), np.float32) for rows in (1, KEYS, KEYS)]
        for _ in range(6)
    ]
    tolerance = 16 * np.finfo(np.float32).eps
    np.testing.assert_allclose(in_regard(*sets[0], 1), in_numpy(*sets[0], 1), atol=tolerance)
    halves = [[array.astype(np.float16) for array in arrays] for arrays in sets]
    expected = in_numpy(*halves[0], 1)
    np.testing.assert_allclose(in_regard(*halves[0], 1), expected, atol=np.finfo("e").eps)
    print("keys and values, as a share of the read bandwidth of the cores")
    print(f"  NumPy, float32, 1 core:   {median_share(sets, 1, in_numpy):4.0%}")
    print(f"  regard, float32, 1 core:  {median_share(sets, 1, in_regard):4.0%}")
    cores = measure.CORES
    print(f"  regard, float32, {cores} cores: {median_share(sets, cores, in_regard):4.0%}")
    print(f"  regard, float16, {cores} cores: {median_share(halves, cores, in_regard):4.0%}")
