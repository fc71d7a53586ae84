"""Attend to keys in files chunk by chunk, with little memory.

The script writes half a gigabyte of keys and values to files (``--megabytes`` changes the size),
and attends to all of them with `regard.attend_stream`. It holds two chunks at a time, and reads one
while it computes the other.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import regard

HEADS, KV_HEADS, HEAD_DIM, QUERIES = 8, 2, 64, 16


def stored_arrays(folder: Path, keys: int) -> list[np.ndarray]:
    """Write keys and values in pieces, as they would come from a model, and open the files."""
    rng = np.random.default_rng(0)
    shape = (KV_HEADS, keys, HEAD_DIM)
    names = [folder / "key", folder / "value"]
    for name in names:
        file = np.memmap(name, np.float32, "w+", shape=shape)
        for start in range(0, keys, 16384):
            part = file[:, start : start + 16384]
            part[...] = rng.standard_normal(part.shape, np.float32)
        file.flush()
    return [np.memmap(name, np.float32, "r", shape=shape) for name in names]


def main() -> None:
    """Attend, and compare a few rows with a single call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    megabytes = parser.parse_args().megabytes
    keys = megabytes * 10**6 // (2 * KV_HEADS * HEAD_DIM * 4)
    query = np.random.default_rng(1).standard_normal((HEADS, QUERIES, HEAD_DIM), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        key, value = stored_arrays(Path(folder), keys)
        chunks = regard.KeyValueChunks(key, value, length=8192)
        print(f"{keys:,} keys in {len(chunks)} chunks of {chunks.length:,}")

        begin = time.perf_counter()
        output = regard.attend_stream(query, chunks, is_causal=True, query_offset="end")
        seconds = time.perf_counter() - begin
        held = 2 * 2 * KV_HEADS * chunks.length * HEAD_DIM * 4
        print(f"{megabytes / 1e3 / seconds:.2f} GB/s, {held / 1e6:.0f} MB of keys and values held")

        # The queries are at the last 16 positions: a window of 1000 needs only one or two chunks.
        regard.attend_stream(query, chunks, window=(999, 0), query_offset="end")

        whole = regard.scaled_dot_product_attention(
            query, key, value, is_causal=True, query_offset="end"
        )
        difference = np.abs(output - whole).max()
        print(f"equal to a single call over all keys: {difference < 1e-6}")


if __name__ == "__main__":
    main()
