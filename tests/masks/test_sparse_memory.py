"""Sparse masks of a million tokens need memory in proportion to what they show."""

import tracemalloc

import numpy as np
import pytest

from regard import masks

N = 1_000_000
CASES = {
    "sliding window": lambda: masks.sliding(N, window=(100, 0)),
    "documents": lambda: masks.documents(np.arange(N) // 2000),
    "causal documents": lambda: (
        masks.documents(np.arange(N) // 2000) & masks.sliding(N, window=(None, 0))
    ),
    "first keys": lambda: masks.sliding(N, window=(100, 0)) | masks.Ranges(0, 16),
    "dilated": lambda: masks.sliding(N, window=(100, 0), dilation=4),
    "global tokens": lambda: masks.global_tokens(16, N),
    "random blocks": lambda: masks.random_blocks(N, blocks_per_row=3, rng=0),
    "the rest": lambda: ~masks.sliding(N, window=(100, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_memory(name):
    tracemalloc.start()
    try:
        mask = CASES[name]()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert mask.shape == (N, N)
    assert mask.nbytes < 100e6
    assert peak < 400e6
