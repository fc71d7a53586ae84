"""Sparse masks in the calls on Dask arrays give the bits of dense masks, and small graphs."""

import pickle

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da

import regard
import regard.dask
from gradient_cases import drawn
from regard.masks import Blocks
from sparse_cases import NAMES, dense, sparse_masks

attend = regard.dask.scaled_dot_product_attention
gradients_of = regard.dask.scaled_dot_product_attention_backward
BATCH, HEADS, Q_LEN, KV_LEN = 2, 4, 33, 90
MASKS = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
BIAS = drawn((HEADS, Q_LEN, KV_LEN), np.float32, 5)
CHUNKS = {
    "whole": ((2,), (4,), (33,), (90,)),
    "queries and keys": ((2,), (4,), (10, 0, 23), (8,) * 11 + (2,)),
    "everything": ((1, 1), (2, 2), (20, 13), (40, 1, 29, 20)),
}


@pytest.fixture(autouse=True)
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


def arrays_in(chunks):
    """Return query, key and value, and the bias."""
    batch, heads, queries, keys = CHUNKS[chunks]
    kv_heads = (1,) * 2 if len(heads) > 1 else (2,)
    shapes = (BATCH, HEADS, Q_LEN, 8), (BATCH, 2, KV_LEN, 8), (BATCH, 2, KV_LEN, 5)
    cuts = (
        (batch, heads, queries, (8,)),
        (batch, kv_heads, keys, (8,)),
        (batch, kv_heads, keys, (5,)),
    )
    return [
        da.from_array(drawn(shape, np.float32, i), chunks=cut)
        for i, (shape, cut) in enumerate(zip(shapes, cuts, strict=True))
    ]


def tasks(array, prefix):
    return sum(str(key[0]).startswith(prefix) for key in array.__dask_graph__())


def blocks(density, q_blocks, kv_blocks, block, heads=1):
    """Draw whole blocks, and return the mask and which blocks it has."""
    shown = np.random.default_rng(0).random((heads, q_blocks, kv_blocks)) < density
    starts = np.zeros((heads, q_blocks + 1), int)
    starts[:, 1:] = shown.sum(-1).ravel().cumsum().reshape(heads, -1)
    starts[1:, 0] = starts[:-1, -1]
    shape = (heads, q_blocks * block, kv_blocks * block)
    mask = Blocks(starts, np.nonzero(shown)[-1], shape=shape, block=(block, block))
    return mask, shown


def test_hidden_pairs_are_not_in_the_graph():
    """There are 131,072 keys, of which a query sees about 5 percent."""
    mask, shown = blocks(0.05, 32, 32, 4096, heads=2)
    arrays = [da.zeros((2, 2**17, 64), chunks=(1, 4096, 64), dtype=np.float32) for _ in range(3)]
    output, lse = attend(*arrays, mask, return_lse=True)
    assert tasks(output, "attention-part-") == shown.sum()
    assert not shown.any(axis=-1).all()  # some rows have no task
    gradients = gradients_of(output, *arrays, output, lse, mask)
    assert tasks(gradients.key, "attention-gradient-part-of-key-") == shown.sum()
    causal = attend(*arrays, mask, is_causal=True)
    assert tasks(causal, "attention-part-") == np.tril(shown).sum()
    # Each task has its own part of the mask, not all of it.
    parts = [task for key, task in output.__dask_graph__().items() if "-part-" in str(key[0])]
    sizes = [each.nbytes for task in parts for each in pickle.loads(pickle.dumps(masks_of(task)))]
    assert len(sizes) == shown.sum()
    assert max(sizes) < 200


def masks_of(task):
    return [each for each in task.args[0].args if isinstance(each, regard.masks.SparseMask)]


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_has_just_the_pairs_with_a_visible_block(name):
    """The ranges of these masks are exact, and blocks of 8 fit into the chunks."""
    batch, heads, queries, keys = (1, 1), (1,) * 4, (16, 17), (8,) * 11 + (2,)
    arrays = [
        da.zeros((BATCH, HEADS, Q_LEN, 8), chunks=(batch, heads, queries, 8)),
        da.zeros((BATCH, HEADS, KV_LEN, 8), chunks=(batch, heads, keys, 8)),
    ]
    if name == "a view":  # its blocks begin elsewhere
        return
    shown = np.broadcast_to(dense(MASKS[name], KV_LEN), (BATCH, HEADS, Q_LEN, KV_LEN))
    shown = np.logical_or.reduceat(np.logical_or.reduceat(shown, [0, 16], 2), range(0, 90, 8), 3)
    output = attend(arrays[0], arrays[1], arrays[1], MASKS[name])
    assert tasks(output, "attention-part-") == shown.sum()


def test_equal_calls_share_their_names():
    arrays = arrays_in("everything")
    given = [None, *MASKS.values(), dense(MASKS["ranges"], KV_LEN), (MASKS["ranges"], BIAS)]
    names = [attend(*arrays, mask).name for mask in given]
    assert len(set(names)) == len(given)
    assert [attend(*arrays, mask).name for mask in given] == names
    again = sparse_masks(BATCH, HEADS, Q_LEN, KV_LEN)
    assert [attend(*arrays, mask).name for mask in again.values()] == names[1:-2]
