"""Sparse masks of very many tokens need memory in proportion to what they show."""

import tracemalloc

import numpy as np
import pytest

from regard import masks

N = 200_000
CASES = {
    "causal documents": lambda: (
        masks.documents(np.arange(N) // 2000) & masks.sliding(N, window=(None, 0))
    ),
    "first keys": lambda: masks.sliding(N, window=(100, 0)) | masks.Ranges(0, 16),
    "dilated": lambda: ~masks.sliding(N, window=(100, 0), dilation=4),
    "global tokens": lambda: masks.global_tokens(16, N),
    "random blocks": lambda: masks.random_blocks(N, blocks_per_row=3, rng=0),
}


def with_peak(make):
    """Return what the function returns, and the most memory that it took."""
    tracemalloc.start()
    try:
        return make(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CASES)
def test_memory(name):
    mask, peak = with_peak(CASES[name])
    assert mask.shape == (N, N)
    assert mask.nbytes < 20e6
    assert peak < 80e6


HUGE = 2**46  # no machine holds a mask of so many ranges or blocks
EVERY_OTHER = masks.Ranges([0, 0], [HUGE, 0])
TOO_LARGE = {
    "sliding": lambda: masks.sliding(HUGE, 8, window=(1, 0)),
    "dilated": lambda: masks.sliding(HUGE, 8, window=(1, 0), dilation=2),
    "dilated, every key": lambda: masks.sliding(2**20, HUGE, window=(None, None), dilation=3),
    "batch of dilated queries": lambda: masks.sliding(
        1, HUGE, window=(None, 0), dilation=3, query_offset=[5, HUGE]
    ),
    "global tokens": lambda: masks.global_tokens(4, HUGE, 8),
    "neighborhood": lambda: masks.neighborhood((2**15, 2**15), 2**12),
    "random blocks": lambda: masks.random_blocks(HUGE, 8, blocks_per_row=1, rng=0),
    "function": lambda: masks.from_function(lambda i, j: j <= i, HUGE, 8),
    "blocks of ranges": lambda: EVERY_OTHER & masks.Blocks([0, 1], [0], shape=(2, 8)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_masks_without_memory_are_refused_before_they_are_built(name):
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MemoryError, match=r"a sparse mask of shape .* would need .* [TP]B"):
        TOO_LARGE[name]()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


def test_a_dense_mask_of_one_key_is_not_copied_to_all_keys():
    window = masks.sliding(64, 2**40, window=(1, 0))
    shown = np.arange(64)[:, None] % 2 == 0
    assert (window & shown).nnz == 63
    assert (window | shown).nnz == 32 * 2**40 + 64


def test_dense_masks_with_broadcast_axes_are_not_copied():
    plane = np.random.default_rng(0).random((3, 2, 1, 1)) < 0.5
    dense = np.broadcast_to(plane, (3, 2, 2048, 2048)).swapaxes(0, 1)
    mask, peak = with_peak(lambda: masks.Blocks.from_dense(dense))
    assert mask.nnz == plane.sum() * 2048 * 2048
    assert peak < 16e6
