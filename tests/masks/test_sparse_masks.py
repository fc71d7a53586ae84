"""Test sparse masks: their constructors, properties, views and copies."""

import copy
import pickle

import numpy as np
import pytest

from reference import assert_same_bits
from regard import masks
from regard.masks import Blocks, Ranges


def between(first, last, kv_len):
    """Return ranges by definition."""
    keys = np.arange(kv_len)
    return (keys >= np.asarray(first)[..., None]) & (keys < np.asarray(last)[..., None])


RANGES = {
    "empty ranges": ([0, 3, 2, 1], [0, 2, 2, 4], {}),
    "beyond the keys": ([-5, 2, 7, -3], [2, 90, 9, -1], {"kv_len": 6}),
    "keys that nobody sees": ([0, 1], [1, 2], {"kv_len": 5}),
    "one row": (1, 3, {"kv_len": 4}),
    "batch and heads": (np.arange(4).reshape(2, 2, 1), np.arange(6).reshape(1, 1, 6), {}),
    "no queries": (np.zeros(0, int), 3, {"kv_len": 3}),
    "types of integers": (np.array([1], np.uint8), np.array([2**64 - 1], np.uint64), {"kv_len": 3}),
    "far": ([-(2**63), 2], [2**63 - 1, 2**63 - 1], {"kv_len": 3}),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name):
    first, last, options = RANGES[name]
    mask = Ranges(first, last, **options)
    kv_len = options.get("kv_len", max(np.max(last, initial=0), 0))
    first, last = (np.asarray(each).astype(object) for each in (first, last))
    if first.ndim == last.ndim == 0:
        first = first[None]
    assert_same_bits(mask.to_dense(), between(first, last, kv_len).astype(bool))


BLOCKS = {
    "whole": ([0, 1, 3], [1, 0, 2], (4, 6), (2, 2)),
    "cut at both ends": ([0, 2, 2, 4], [0, 2, 1, 2], (5, 7), (2, 3)),
    "no blocks": ([0, 0], [], (3, 3), (4, 4)),
    "one block": ([0, 1], [0], (3, 5), (128, 128)),
    "an end that is not used": ([0, 1, 2], [0, 1, 1, 1], (4, 4), (2, 2)),
    "heads": ([[0, 1, 2], [2, 2, 4]], [1, 0, 0, 1], (2, 4, 4), (2, 2)),
    "heads that share": ([0, 1, 2], [1, 0], (3, 4, 4), (2, 2)),
    "rows that share": ([[0, 2, 3], [0, 2, 3]], [0, 1, 0], (2, 4, 4), (2, 2)),
    "one query": ([0, 2], [0, 2], (1, 9), (4, 3)),
    "no queries": ([0], [], (0, 4), (2, 2)),
    "no keys": ([0, 0], [], (2, 0), (2, 2)),
    "blocks of one": ([0, 1, 2, 2], [1, 0], (3, 3), (1, 1)),
}


def placed(indptr, indices, shape, block, bits):
    """Return blocks by definition."""
    height, width = block
    dense = np.zeros(shape, bool)
    starts = np.broadcast_to(indptr, (*shape[:-2], np.shape(indptr)[-1]))
    for plane in np.ndindex(shape[:-2]):
        for row in range(starts.shape[-1] - 1):
            for i in range(starts[plane][row], starts[plane][row + 1]):
                at = dense[plane][row * height :, indices[i] * width :][:height, :width]
                at[...] = bits[i][: at.shape[0], : at.shape[1]]
    return dense


@pytest.mark.parametrize("density", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name, density):
    indptr, indices, shape, block = BLOCKS[name]
    bits = np.ones((len(indices), *block), bool)
    if density is None:
        given = [None]
    else:
        bits &= np.random.default_rng(0).random(bits.shape) < density
        given = [bits, np.packbits(bits, axis=-1, bitorder="little")]
    wanted = placed(indptr, indices, shape, block, bits)
    for each in given:
        mask = Blocks(indptr, indices, shape=shape, block=block, bits=each)
        assert_same_bits(mask.to_dense(), wanted)
        assert mask.block == block
        assert mask.nnz == wanted.sum()


SPARSE = {
    "ranges": Ranges(np.arange(7) - 2, np.arange(7) + 1),
    "several ranges": Ranges(np.arange(7) - 2, np.arange(7) + 1) | Ranges(0, 2),
    "heads": Ranges([[0], [2]], np.arange(1, 8)),
    "one query": Ranges(1, 4, kv_len=7),
    "blocks": Blocks.from_dense(np.random.default_rng(0).random((7, 9)) < 0.5, block=(2, 4)),
    "whole blocks": Blocks([0, 1, 2], [0, 1], shape=(5, 6), block=(3, 4)),
    "batch": Blocks.from_dense(np.random.default_rng(1).random((3, 2, 6, 9)) < 0.5, block=(4, 4)),
    "one query in blocks": Blocks.from_dense(np.array([[True, False, True]]), block=(2, 2)),
    "nothing": Ranges([0, 0], [0, 0], kv_len=3),
    "no queries": Ranges(np.zeros(0, int), 3, kv_len=3),
    "no keys": Blocks.from_dense(np.zeros((3, 0), bool), block=(2, 3)),
    "no heads": Blocks.from_dense(np.zeros((0, 3, 4), bool), block=(2, 3)),
}


@pytest.mark.parametrize("name", SPARSE)
def test_properties_and_copies(name):
    mask = SPARSE[name]
    dense = mask.to_dense()
    for attribute in ("shape", "ndim", "dtype", "size"):
        assert getattr(mask, attribute) == getattr(dense, attribute)
        with pytest.raises(AttributeError):
            setattr(mask, attribute, None)
    assert len(mask) == len(dense)
    assert type(mask.nnz) is int
    assert mask.nbytes == sum(each.nbytes for each in mask._sparse_rows()[:3])
    assert repr(mask).startswith(f"{type(mask).__name__}(shape={mask.shape}, ")
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)
    assert not any(array.flags.writeable for array in mask._sparse_rows()[:3])
    for each in (mask, mask[..., 1:, 1:4]):
        twins = [pickle.loads(pickle.dumps(each, protocol)) for protocol in (2, 5)]
        assert not any(twin._sparse_rows().spans.flags.writeable for twin in twins)
        for twin in (*twins, copy.copy(each), copy.deepcopy(each)):
            assert type(twin) is type(each)
            assert_same_bits(twin.to_dense(), each.to_dense())


def test_a_count_may_exceed_64_bits():
    heads = Blocks([0, 1], [0], shape=(2**30, 2**14, 2**10, 2**10), block=(2**10, 2**10))
    assert heads.nnz == heads.size == 2**64
    assert (~heads).nnz == 0
    assert (heads & masks.sliding(2**10, window=(0, 0))).nnz == 2**54
    assert (~Ranges(0, 0, kv_len=2**40)).nnz == 2**40


def test_heads_that_share_their_mask_are_stored_once():
    heads = Blocks([0, 1], [0], shape=(2**30, 64, 9, 9))
    assert len(pickle.dumps(masks.sliding(10_000, window=(3, 0))[:5, :5])) < 1000  # of a view
    for mask in (heads, ~heads, heads & masks.sliding(9, window=(1, 0)), heads[5:, ..., 3:4, 2:]):
        again = pickle.loads(pickle.dumps(mask))
        assert again.shape == mask.shape
        assert len(pickle.dumps(mask)) < 5000
        assert_same_bits(again[7, 1].to_dense(), mask[2, 3].to_dense())
        assert mask._sparse_rows().starts.shape[:-1] == mask.shape[:-2]
        assert mask._sparse_rows().spans.nbytes < 1000


INDICES = [
    *(np.s_[:], np.s_[..., 2:7], np.s_[..., 3:4, 1:6], np.s_[..., -4:, -5:-1]),
    *(np.s_[..., 5:2, :], np.s_[..., :100, 2:100], np.s_[None, ..., 1:4, :]),
]
OF_PLANES = [
    *(np.s_[-1], np.s_[1:], np.s_[:, None], np.s_[np.int8(1)]),
    *(np.s_[:1, ..., 1:5, 2:6], np.s_[0, ..., 4:]),
]


@pytest.mark.parametrize("name", SPARSE)
def test_views(name):
    mask = SPARSE[name]
    for index in INDICES + (OF_PLANES if mask.ndim > 2 and len(mask) else []):
        dense, view = mask.to_dense()[index], mask[index]
        assert type(view) is type(mask)
        assert_same_bits(view.to_dense(), dense)
        assert view.nnz == dense.sum()
        assert_same_bits((~view).to_dense(), ~dense)
        spans = view._sparse_rows().spans
        assert spans.base is None or spans is mask._sparse_rows().spans
        if dense.shape[-2] > 2 and dense.shape[-1] > 2:
            assert_same_bits(view[..., 1:-1, 1:].to_dense(), dense[..., 1:-1, 1:])


def test_iteration_over_heads():
    mask = SPARSE["heads"]
    assert [head.nnz for head in mask] == mask.to_dense().sum(axis=(1, 2)).tolist()
    with pytest.raises(TypeError, match="no parts to iterate over"):
        iter(SPARSE["ranges"])


STACKED = [
    [masks.sliding(9, window=(n, 0)) for n in range(5)],
    [SPARSE["blocks"], Ranges(np.arange(7), 9), SPARSE["blocks"]],
    [SPARSE["batch"], ~SPARSE["batch"]],
    [Blocks.from_dense(masks.causal(9), block=(b, 3)) for b in (1, 2, 4)],
]


@pytest.mark.parametrize("parts", STACKED)
def test_stack(parts):
    mask = masks.stack(parts)
    assert_same_bits(mask.to_dense(), np.stack([part.to_dense() for part in parts]))
    assert isinstance(mask, Blocks) == any(isinstance(part, Blocks) for part in parts)
    assert masks.stack(iter(parts)).nnz == mask.nnz
