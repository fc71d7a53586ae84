"""Problems as Dask arrays, cut into chunks of unequal sizes."""

import zlib
from typing import NamedTuple

import dask.array as da
import numpy as np

import regard.dask
from cases import Case

EVERYTHING = Case(
    "everything",
    *((2, 4, 230, 16), (2, 2, 310, 16), (2, 2, 310, 12)),
    float_mask=(4, 230, 310),
    alibi_slopes=0.1,
    distance_bias=40,
    sinks=0.5,
    is_causal=True,
    query_offset=(90, 40),
)


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
    first = random.integers(len(problem.batch) + 1)  # dropout needs chunks of consecutive entries
    batch = []
    for axis, size in enumerate(problem.batch):
        chunks = (1,) * size if axis < first else (size,)
        batch.append((drawn_chunks(random, size, 3) if axis == first else chunks) or (0,))
    heads, *kv_heads = (x.shape[-3] if x.ndim > 2 else 1 for x in problem.arrays)
    kv_heads = max(kv_heads)
    group = heads // kv_heads if kv_heads else 0
    if not heads:
        head_chunks, kv_head_chunks = (0,), (kv_heads,)
    elif random.integers(2):
        kv_head_chunks = tuple(filter(None, drawn_chunks(random, kv_heads, 3)))
        head_chunks = tuple(group * count for count in kv_head_chunks)
    else:  # a key head may serve several chunks of query heads
        kv_head_chunks = (1,) * kv_heads
        head_chunks = sum((drawn_chunks(random, group, 2) for _ in range(kv_heads)), ())
    if query.ndim == 2:
        head_chunks = (1,)
    q_chunks, kv_chunks = (drawn_chunks(random, x.shape[-2], most) for x in (query, key))

    def dask_array(array, *wanted):
        wanted = (*batch, *wanted)[-array.ndim :] if array.ndim else ()
        axes = zip(array.shape, wanted, strict=True)
        return da.from_array(
            array, chunks=tuple(full if n == sum(full) else (n,) for n, full in axes)
        )

    def mask_of(mask):
        if not isinstance(mask, np.ndarray) or not random.integers(3):
            return mask
        return dask_array(mask, head_chunks, q_chunks, kv_chunks)

    arrays = (
        dask_array(query, head_chunks, q_chunks, query.shape[-1:]),
        dask_array(key, kv_head_chunks, kv_chunks, key.shape[-1:]),
        dask_array(value, kv_head_chunks, kv_chunks, value.shape[-1:]),
    )
    options = dict(problem.options)
    if options.get("mask") is not None:
        mask = options["mask"]
        options["mask"] = tuple(map(mask_of, mask)) if isinstance(mask, tuple) else mask_of(mask)
    is_flat = all(array.ndim == 2 for array in problem.arrays)
    rows = (q_chunks,) if is_flat else (*batch, head_chunks, q_chunks)
    return Cut(arrays, options, (*rows, value.shape[-1:]))


def call(problem, name, wanted=None, *, most=4, wrap=lambda array: array, **extra):
    """Return the cut problem, its output and lse, and the gradients of `wanted` inputs, lazily."""
    whole = cut(problem, name, most)
    arrays = [wrap(array) for array in whole.arrays]
    options = {"split_every": 2} | whole.options | extra
    state = regard.dask.scaled_dot_product_attention(*arrays, **options, return_lse=True)
    grad_output, grad_lse = (
        da.from_array(array, chunks=own.chunks)
        for array, own in zip((problem.grad_output, problem.grad_lse), state, strict=True)
    )
    options |= {
        "grad_lse": grad_lse,
        "with_respect_to": tuple(problem.inputs) if wanted is None else wanted,
    }
    gradients = regard.dask.scaled_dot_product_attention_backward(
        grad_output, *arrays, *state, **options
    )
    return whole, state, gradients
