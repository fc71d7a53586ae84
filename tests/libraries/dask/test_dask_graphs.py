"""Graphs for Dask arrays have a task for each pair of chunks of which something is visible, and the
names of equal calls are equal."""

import itertools
import pickle

import numpy as np
import pytest

pytest.importorskip("dask.array", reason='pip install ".[dask]"')

import dask
import dask.array as da
from dask.base import tokenize

import regard
import regard.dask
from dask_chunks import cut
from error_limits import expected
from option_cases import MIXES
from problem import drawn
from regard.masks import Blocks

attend = regard.dask.scaled_dot_product_attention
gradients_of = regard.dask.scaled_dot_product_attention_backward


@pytest.fixture(autouse=True)
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


def causal(length, q_chunk, kv_chunk, **options):
    query = da.zeros((12, length, 64), chunks=(12, q_chunk, 64), dtype=np.float32)
    key = da.ones((12, length, 64), chunks=(12, kv_chunk, 64), dtype=np.float32)
    return attend(query, key, key, **options)


def tasks(array, prefix=""):
    return sum(str(key[0]).startswith(prefix) for key in array.__dask_graph__())


def test_hidden_pairs_are_not_in_the_graph():
    """131,072 causal keys in chunks of 4096 need no more than 1400 tasks in all."""
    whole = causal(2**17, 4096, 4096, is_causal=True)
    assert tasks(whole, "attention-part-") == 32 * 33 // 2
    assert tasks(whole) <= 1400
    decode = attend(
        da.zeros((12, 1, 64), chunks=-1), *[da.zeros((12, 2**17, 64), chunks=(12, 4096, 64))] * 2
    )
    assert tasks(decode, "attention-part-") == 32
    assert tasks(decode, "attention-merge-") == 4


@pytest.mark.parametrize("number", range(0, len(MIXES), 5))
def test_the_graph_has_just_the_pairs_that_positions_leave(number):
    """The pairs are found one by one, from the positions of every query and key."""
    problem = MIXES[number].build(np.dtype(np.float32))
    options = {
        name: value
        for name, value in problem.options.items()
        if name in ("is_causal", "window", "query_offset", "key_lengths", "left_padding")
    }
    whole = cut(problem, MIXES[number].name)
    seen = expected(*problem.arrays, **options).seen
    *batch, heads, queries, _ = whole.output_chunks
    axes = (*batch, heads, queries, whole.arrays[1].chunks[-2])
    sums = np.asarray(seen)
    for axis, chunks in enumerate(axes):
        starts = np.cumsum([0, *chunks])
        parts = [sums.take(range(*ends), axis) for ends in itertools.pairwise(starts)]
        sums = np.concatenate([part.any(axis=axis, keepdims=True) for part in parts], axis)
    graph = attend(*whole.arrays, **options)
    assert tasks(graph, "attention-part-") == sums.sum()


def test_equal_calls_share_their_names():
    arrays = [da.ones((4, 20, 8), chunks=(2, 10, 8)) for _ in range(3)]
    slopes = np.array([0.1, 0.2, 0.3, 0.4])
    calls = [
        {},
        {"is_causal": True},
        {"window": (3, 0)},
        {"alibi_slopes": slopes},
        {"alibi_slopes": 2 * slopes},
        {"sinks": slopes},
        {"dropout_p": 0.1, "dropout_seed": 1},
        {"dropout_p": 0.1, "dropout_seed": 2},
        {"dropout_p": 0.1, "dropout_seed": 2, "dropout_origin": (1, 0, 0)},
        {"key_lengths": 7},
        {"left_padding": 7},
        {"query_offset": 7},
        {"scale": 7.0},
        {"softcap": 7.0},
        {"mask": np.ones((20, 20), bool)},
        {"mask": np.zeros((20, 20))},
        {"split_every": 2},
    ]
    names = [attend(*arrays, **options).name for options in calls]
    assert len(set(names)) == len(calls)
    assert [attend(*arrays, **options).name for options in calls] == names
    assert tokenize(attend(*arrays)) == tokenize(attend(*arrays))


def test_nothing_is_computed_before_it_is_asked_for():
    def fail(block):
        raise RuntimeError("a chunk was computed")

    arrays = [da.ones((4, 20, 8), chunks=(2, 10, 8)).map_blocks(fail, dtype=float)] * 3
    mask = da.ones((20, 20), chunks=10, dtype=bool).map_blocks(fail, dtype=bool)
    output, lse = attend(*arrays, mask, return_lse=True)
    regard.dask.scaled_dot_product_attention_backward(output, *arrays, output, lse, mask)
    with pytest.raises(RuntimeError, match="a chunk was computed"):
        output.compute()


def test_gradients_share_their_tasks():
    arrays = [da.from_array(x, chunks=(2, 25, 8)) for x in drawn((3, 2, 100, 8), np.float32)]
    output, lse = attend(*arrays, is_causal=True, return_lse=True)
    gradients = gradients_of(output, *arrays, output, lse, is_causal=True)
    keys = {key for array in gradients[:3] for key in array.__dask_graph__()}
    pairs = [key for key in keys if str(key[0]).startswith("attention-gradient-part-")]
    pairs = [key for key in pairs if "-of-" not in key[0]]
    assert len(pairs) == 4 * 5 // 2


def blocks(density, q_blocks, kv_blocks, block, heads=1):
    """Draw whole blocks, and return the mask and which blocks it has."""
    shown = np.random.default_rng(0).random((heads, q_blocks, kv_blocks)) < density
    starts = np.zeros((heads, q_blocks + 1), int)
    starts[:, 1:] = shown.sum(-1).ravel().cumsum().reshape(heads, -1)
    starts[1:, 0] = starts[:-1, -1]
    shape = (heads, q_blocks * block, kv_blocks * block)
    mask = Blocks(starts, np.nonzero(shown)[-1], shape=shape, block=(block, block))
    return mask, shown


def test_pairs_that_a_sparse_mask_hides_are_not_in_the_graph():
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
