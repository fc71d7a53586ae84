"""Problems as Dask arrays, cut into chunks of unequal sizes."""

import zlib
from typing import NamedTuple

import dask.array as da
import numpy as np


class Cut(NamedTuple):
    """The Dask arrays of a problem, and the chunks of its output and lse."""

    arrays: tuple
    options: dict
    output_chunks: tuple


def drawn_chunks(random, size, most=4):
    """Return chunks of any sizes, including 0 and 1, at most `most` of them."""
    cuts = np.sort(random.integers(0, size + 1, random.integers(most)))
    return tuple(np.diff([0, *cuts.tolist(), size]).tolist())


def cut(problem, name, most=4):
    """Cut a problem along every axis that may be cut; its name determines how."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    query, key, value = problem.arrays
    batch = problem.batch
    first = random.integers(len(batch) + 1)  # dropout needs chunks of consecutive entries
    batch_chunks = tuple(
        (1,) * size if axis < first else drawn_chunks(random, size, 3) if axis == first else (size,)
        for axis, size in enumerate(batch)
    )
    batch_chunks = tuple(chunks or (0,) for chunks in batch_chunks)
    heads, kv_heads = (x.shape[-3] if x.ndim > 2 else 1 for x in (query, key))
    kv_heads = max(kv_heads, value.shape[-3] if value.ndim > 2 else 1)
    group = heads // kv_heads if kv_heads else 0
    if not heads:
        head_chunks, kv_head_chunks = (0,), (kv_heads,)
    elif random.integers(2):
        kv_head_chunks = tuple(filter(None, drawn_chunks(random, kv_heads, 3)))
        head_chunks = tuple(group * count for count in kv_head_chunks)
    else:
        kv_head_chunks, head_chunks = (1,) * kv_heads, ()
        for _ in range(kv_heads):
            head_chunks += drawn_chunks(random, group, 2)
    if query.ndim == 2:
        head_chunks = (1,)
    q_chunks = drawn_chunks(random, query.shape[-2], most)
    kv_chunks = drawn_chunks(random, key.shape[-2], most)

    def dask_array(array, wanted):
        wanted = wanted[len(wanted) - array.ndim :]
        own = tuple(
            full if size == sum(full) else (size,)
            for size, full in zip(array.shape, wanted, strict=True)
        )
        return da.from_array(array, chunks=own)

    def dask_mask(mask):
        wanted = (*batch_chunks, head_chunks, q_chunks, kv_chunks)
        return dask_array(mask, wanted) if random.integers(3) else mask

    def whole(array):
        return (array.shape[-1],)

    arrays = (
        dask_array(query, (*batch_chunks, head_chunks, q_chunks, whole(query))),
        dask_array(key, (*batch_chunks, kv_head_chunks, kv_chunks, whole(key))),
        dask_array(value, (*batch_chunks, kv_head_chunks, kv_chunks, whole(value))),
    )
    options = dict(problem.options)
    mask = options.get("mask")
    if mask is not None:
        pair = isinstance(mask, tuple)
        options["mask"] = tuple(map(dask_mask, mask)) if pair else dask_mask(mask)
    is_flat = all(array.ndim == 2 for array in problem.arrays)
    rows = (q_chunks,) if is_flat else (*batch_chunks, head_chunks, q_chunks)
    return Cut(arrays, options, (*rows, whole(value)))
