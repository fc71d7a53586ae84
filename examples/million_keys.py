"""Attend to a million keys that are stored on disk in Zarr arrays, with a progress bar.

The keys and values, 1 GB in float32, are written and read chunk by chunk: the script never holds
more than a few chunks of them. It needs Dask and Zarr. ``--keys`` reduces the size.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from dask.diagnostics import ProgressBar

import regard.dask

HEADS, KV_HEADS, HEAD_DIM, QUERIES = 8, 2, 64, 16


def write(folder: str, name: str, keys: int, chunk: int, seed: int) -> da.Array:
    """Write random numbers to a Zarr array, and return it as a Dask array in the same chunks."""
    array = zarr.create_array(
        Path(folder) / name,
        shape=(KV_HEADS, keys, HEAD_DIM),
        chunks=(KV_HEADS, chunk, HEAD_DIM),
        dtype=np.float32,
        compressors=None,
    )
    rng = np.random.default_rng(seed)
    for start in range(0, keys, chunk):
        count = min(chunk, keys - start)
        array[:, start : start + count] = rng.standard_normal(
            (KV_HEADS, count, HEAD_DIM), np.float32
        )
    return da.from_zarr(array)


def check(
    query: np.ndarray, key: da.Array, value: da.Array, output: np.ndarray, lse: float
) -> float:
    """Return the error of the last query of the first head, computed chunk by chunk."""
    total, exact = 0.0, np.zeros(HEAD_DIM)
    for number in range(key.numblocks[1]):
        keys, values = (np.asarray(x.blocks[0, number][0], np.float64) for x in (key, value))
        weights = np.exp(keys @ query.astype(np.float64) / np.sqrt(HEAD_DIM) - lse)
        total += weights.sum()
        exact += weights @ values
    return float(max(abs(total - 1), np.abs(exact - output).max()))


def main() -> None:
    """Write the keys and values, attend to them, and report the memory used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--chunk", type=int, default=25_000, help="keys in a chunk")
    parser.add_argument("--workers", type=int, default=2, help="threads that attend")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = write(folder, "key", given.keys, given.chunk, seed=1)
        value = write(folder, "value", given.keys, given.chunk, seed=2)
        rng = np.random.default_rng(0)
        query = da.from_array(rng.standard_normal((HEADS, QUERIES, HEAD_DIM), np.float32))
        # The last tokens of a sequence, each of which sees all keys before it.
        output, lse = regard.dask.scaled_dot_product_attention(
            query, key, value, is_causal=True, query_offset=given.keys - QUERIES, return_lse=True
        )
        print(f"{QUERIES} queries, {given.keys:,} keys in {key.numblocks[1]} chunks")
        begun = time.perf_counter()
        with ProgressBar():
            output, lse = da.compute(output, lse, scheduler="threads", num_workers=given.workers)
        seconds = time.perf_counter() - begun
        error = check(query[0, -1].compute(), key, value, output[0, -1], lse[0, -1])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{2 * key.nbytes / 1e9:.2f} GB of keys and values in {seconds:.1f} s")
    print(f"the process never held more than {memory / 1e9:.2f} GB")
    print(f"equal to NumPy in float64 up to rounding: {error < 1e-6}")


if __name__ == "__main__":
    main()
