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
from reference import assert_same_bits
from regard.masks import Blocks, Ranges
from sparse_cases import NAMES, dense, in_turn, sparse_masks

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
OPTIONS = {
    "plain": {},
    "positions": {"is_causal": True, "query_offset": np.array([57, 3]), "left_padding": 4},
    "scores": {
        "softcap": [np.inf, 2.0, 0.5, 1.0],
        "scale": drawn((2, 4), np.float64),
        "sinks": drawn((4,), np.float32),
        "distance_bias": drawn((4, 41), np.float32, 1),
    },
    "dropout": {"dropout_p": 0.3, "dropout_seed": 5},
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


@pytest.mark.parametrize(("name", "chunks", "scores"), in_turn(NAMES, CHUNKS, OPTIONS))
def test_the_bits_of_the_dense_mask(name, chunks, scores):
    arrays, shown = arrays_in(chunks), dense(MASKS[name], KV_LEN)
    for split_every, bias in ((2, None), (8, None), (3, BIAS)):
        pair = (MASKS[name], shown) if bias is None else ((MASKS[name], bias), (shown, bias))
        options = {"return_lse": True, "split_every": split_every, **OPTIONS[scores]}
        actual, wanted = (dask.compute(*attend(*arrays, mask, **options)) for mask in pair)
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize(("name", "chunks", "scores"), in_turn(NAMES, CHUNKS, OPTIONS))
def test_the_gradients_of_the_dense_mask(name, chunks, scores):
    arrays, options, results = arrays_in(chunks), OPTIONS[scores], []
    wanted = ["query", "key", "value", "mask", *(options.keys() & {"sinks", "distance_bias"})]
    for shown in (MASKS[name], dense(MASKS[name], KV_LEN)):
        mask = shown, BIAS
        output, lse = attend(*arrays, mask, return_lse=True, split_every=2, **options)
        gradients = gradients_of(
            2 * output,
            *arrays,
            output,
            lse,
            mask,
            grad_lse=lse.map_blocks(np.isfinite, dtype=bool).astype(np.float32),
            with_respect_to=wanted,
            split_every=2,
            **options,
        )
        results.append(dask.compute(*gradients))
    for sparse, wanted in zip(*results, strict=True):
        assert (sparse is None) == (wanted is None)
        if sparse is not None:  # -0 plus the zeros of a hidden pair is +0
            assert_same_bits(sparse + 0, wanted + 0)


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


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_schedulers(scheduler):
    arrays, mask = arrays_in("everything"), MASKS["blocks"]
    wanted = attend(*arrays, mask).compute()
    assert_same_bits(attend(*arrays, mask).compute(scheduler=scheduler), wanted)


WRONG = {
    "queries": (Ranges(0, np.ones(20, int)), ValueError, r"mask must .*mask of shape \(20, 1\)"),
    "heads": (
        Ranges(0, np.ones((3, 33), int)),
        ValueError,
        r"mask must .*of shape \(3, 33, 1",
    ),
    "keys": (Ranges(0, 91), ValueError, r"mask .*fewer keys, got .*\(1, 91\)"),
    "a pair": ((BIAS, Ranges(0, 9)), TypeError, r"mask must be .*got a pair \(float32, bool\)"),
    "two": ((Ranges(0, 9), Ranges(0, 8)), TypeError, r"mask must be .*got a pair \(bool, bool\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_masks_that_do_not_fit(case):
    mask, kind, message = WRONG[case]
    arrays = arrays_in("everything")
    with pytest.raises(kind, match=message):
        attend(*arrays, mask)
    output, lse = attend(*arrays, return_lse=True)
    with pytest.raises(kind, match=message):
        gradients_of(output, *arrays, output, lse, mask)
    with pytest.raises(TypeError, match="a bool mask has no gradient"):
        gradients_of(output, *arrays, output, lse, Ranges(0, 9), with_respect_to=["mask"])
