"""Measure whether the disk or the arithmetic limits the speed of attention to keys in a file.

    python benchmarks/stream_from_disk.py [folder] [--gigabytes 4] [--dtype float16]
    python benchmarks/stream_from_disk.py [folder] --beyond-memory

The script writes keys and values to two files. For several numbers of rows (queries of all heads
that read one key head), it measures, in GB/s of keys and values,

- reading: the files, from first to last, into one buffer;
- arithmetic: single calls on chunks in memory;
- stream: `regard.attend_stream`, with both at the same time.

The stream cannot be faster than the slower of the two, and the last column reports how close it is.
Before every measurement the files are dropped from the system's cache, which any user may do with
files that are not in use. Some file systems (tmpfs, overlays in containers) keep them nevertheless;
"reading" then measures memory. With --beyond-memory the files are 1.2 times as large as memory, so
that no cache can hold them.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

import regard

KV_HEADS, DIM, CHUNK = 2, 64, 65536
ROWS = (1, 4, 16, 64, 256, 1024)
# Runs of arithmetic are repeated until they have taken this many seconds.
LONG_ENOUGH = 1.0


def write(paths, dtype, keys):
    """Write numbers of the right size, repeating the same ones to save time."""
    piece = np.random.default_rng(0).standard_normal((KV_HEADS, CHUNK, DIM)).astype(dtype)
    for path in paths:
        array = np.memmap(path, dtype, "w+", shape=(KV_HEADS, keys, DIM))
        for start in range(0, keys, CHUNK):
            part = array[:, start : start + CHUNK]
            part[...] = piece[:, : part.shape[1]]
        array.flush()


def drop(paths):
    """Drop the files from the system's cache, if it allows that."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def seconds(call, *arguments):
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def read(paths):
    buffer = bytearray(16 << 20)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def arithmetic_seconds(query, dtype):
    """Return the median seconds for one chunk in memory, over runs of at least a second."""
    key, value = np.random.default_rng(1).standard_normal((2, KV_HEADS, CHUNK, DIM)).astype(dtype)
    regard.scaled_dot_product_attention(query, key, value)
    times = []
    while sum(times) < LONG_ENOUGH or len(times) < 3:
        times.append(seconds(regard.scaled_dot_product_attention, query, key, value))
    return float(np.median(times))


def stream(query, paths, dtype, keys):
    maps = [np.memmap(path, dtype, "r", shape=(KV_HEADS, keys, DIM)) for path in paths]
    regard.attend_stream(query, regard.KeyValueChunks(*maps, length=CHUNK))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="a folder for the files")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--beyond-memory", action="store_true")
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float32")
    arguments = parser.parse_args()
    dtype, size = np.dtype(arguments.dtype), arguments.gigabytes * 1e9
    if arguments.beyond_memory:
        size = 1.2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    of_key = 2 * KV_HEADS * DIM * dtype.itemsize
    keys = int(size) // of_key
    gigabytes = keys * of_key / 1e9
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        paths = [Path(folder) / "key", Path(folder) / "value"]
        write(paths, dtype, keys)
        print(
            f"{keys:,} keys of {KV_HEADS} heads, {gigabytes:.1f} GB of {dtype}, chunks of {CHUNK}, "
            f"{regard.get_num_threads()} threads"
        )
        print("  rows   reading  arithmetic    stream  limit        of the limit")
        for rows in ROWS:
            query = np.random.default_rng(2).standard_normal((KV_HEADS, rows, DIM)).astype(dtype)
            drop(paths)
            disk = gigabytes / seconds(read, paths)
            alone = CHUNK * of_key / 1e9 / arithmetic_seconds(query, dtype)
            drop(paths)
            both = gigabytes / seconds(stream, query, paths, dtype, keys)
            limit = "reading" if disk < alone else "arithmetic"
            print(
                f"{rows:>6}{disk:>10.2f}{alone:>12.2f}{both:>10.2f}  {limit:11}"
                f"{both / min(disk, alone):>13.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
