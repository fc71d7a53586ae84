"""Test masks by position and by document against their definitions, in Python's integers."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from drawn_problems import examples
from reference import assert_same_bits
from regard import masks
from regard.masks import Blocks, Ranges

FAR = 2**63 - 1
SIDES = [None, 0, 1, 3, FAR, 10**30]
OFFSETS = st.one_of(
    st.integers(-9, 9),
    st.sampled_from(["end", 100, -100, FAR, -FAR - 1, 2**64 - 1, 10**30, -(10**30), np.int8(2)]),
    st.sampled_from(
        [
            np.array(2),
            [3, -130],
            [[0, 3, -2], [7, 1, 100]],
            np.array([5, 127], np.int8),
            np.array([0, 2**64 - 1], np.uint64),
            np.array([FAR, -FAR - 1]),
            np.zeros((2, 0), int),
            [],
        ]
    ),
)


def ahead_of(q_len, kv_len, query_offset):
    """Return the distance of each key after its query, in Python's integers."""
    offset = kv_len - q_len if isinstance(query_offset, str) else query_offset
    offset = np.asarray(offset).astype(object)
    offset = offset[..., None, None, None] if offset.ndim else offset
    return np.arange(kv_len).astype(object) - np.arange(q_len).astype(object)[:, None] - offset


def slid(q_len, kv_len, window, dilation, query_offset):
    ahead = ahead_of(q_len, kv_len, query_offset)
    seen = np.asarray(ahead % dilation == 0)
    if window[0] is not None:
        seen &= np.asarray(ahead >= -window[0] * dilation)
    if window[1] is not None:
        seen &= np.asarray(ahead <= window[1] * dilation)
    return seen.astype(bool)


@examples(300)
@hypothesis.given(
    st.integers(0, 7),
    st.integers(0, 9),
    st.tuples(st.sampled_from(SIDES), st.sampled_from(SIDES)),
    OFFSETS,
    st.integers(0, 9),
    st.sampled_from([1, 1, 2, 3, 130]),
)
def test_masks_by_position(q_len, kv_len, window, offset, prefix, dilation):
    shape, at = (q_len, kv_len), {"query_offset": offset}
    causal = slid(*shape, (None, 0), 1, offset)
    assert_same_bits(masks.causal(*shape, **at), causal)
    near = slid(*shape, window, 1, offset)
    assert_same_bits(masks.window(*shape, window=window, **at), near)
    assert_same_bits(masks.sliding(*shape, window=window, **at).to_dense(), near)
    prefix = min(prefix, kv_len)
    mask = masks.prefix(*shape, prefix_lengths=prefix, **at)
    assert isinstance(mask, Ranges)
    wanted = causal | (np.arange(kv_len) < prefix)
    assert_same_bits(mask.to_dense(), wanted)
    if causal.ndim == 2:
        mask = masks.prefix(*shape, prefix_lengths=[prefix, 0], **at)
        assert_same_bits(mask.to_dense(), np.stack([wanted, causal])[:, None])
    if not isinstance(window[0], int) or window[0] < FAR:
        mask = masks.sliding(*shape, window=window, dilation=dilation, **at)
        wanted = slid(*shape, window, dilation, offset)
        assert_same_bits(mask.to_dense(), wanted)
        assert mask.nnz == wanted.sum()
        assert isinstance(mask, Ranges) == (dilation == 1)


@pytest.mark.parametrize("lengths", [0, 7, np.int8(3), [3], [0, 7, 2], [[1, 2], [3, 4]], []])
def test_padding(lengths):
    if not np.size(lengths):
        lengths = np.zeros(0, int)
    right, left = (masks.padding(lengths, 7, side=side) for side in ("right", "left"))
    lengths = np.asarray(lengths)
    real = lengths[..., None, None, None] if lengths.ndim else lengths[None, None]
    assert_same_bits(right, np.arange(7) < real)
    assert_same_bits(left, right[..., ::-1])
    assert_same_bits(masks.padding(lengths, 7), right)
    assert masks.padding(0, 0).shape == (1, 0)
    assert_same_bits(masks.causal(5), np.tri(5, dtype=bool))  # square by default


WIDE = np.array([2**64 - 1, 0, 2**63], np.uint64)
IDS = {
    "any order": ([7, 7, -1, -1, -1, 3], None),
    "in two parts": ([0, 0, 1, 1, 0, 0], None),
    "alternating": ([0, 1, 0, 1, 0, 1], None),
    "none": (np.zeros(0, int), None),
    "far apart": (WIDE, None),
    "batch": ([[0, 0, 1], [0, 1, 1]], None),
    "batches": (np.arange(24).reshape(2, 3, 4) // 3, None),
    "no batch": (np.zeros((0, 5), int), None),
    "keys": ([1, 0, 2], [0, 0, 1, 1, 1]),
    "keys of the batch": ([[0, 1], [1, 0]], [0, 0, 1]),
    "both": ([[[0, 1]], [[1, 0]]], [[0, 1, 1], [1, 1, 0]]),
    "no keys": ([3, 3], np.zeros(0, int)),
    "types": (np.array([-1, 5]), np.array([2**64 - 1, 5], np.uint64)),
    "narrow types": (np.array([255, 5], np.uint8), np.array([-1, 5], np.int8)),
}


@pytest.mark.parametrize("name", IDS)
def test_documents(name):
    given = IDS[name]
    queries, keys = (np.asarray(given[0] if ids is None else ids, object) for ids in given)
    wanted = queries[..., :, None] == keys[..., None, :]
    if wanted.ndim > 2:
        wanted = wanted[..., None, :, :]
    assert_same_bits(masks.segments(*given), wanted.astype(bool))
    mask = masks.documents(*given)
    assert_same_bits(mask.to_dense(), wanted.astype(bool))
    assert mask.nnz == wanted.sum()


@pytest.mark.parametrize(("count", "kind"), [(2, Blocks), (2000, Ranges)])
def test_documents_in_many_parts_take_the_smaller_kind(count, kind):
    ids = np.random.default_rng(0).integers(0, count, (2, 500))
    mask = masks.documents(ids)
    assert isinstance(mask, kind)
    assert_same_bits(mask.to_dense(), masks.segments(ids))


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3, 5)], ids=str)
def test_as_additive(shape, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    mask = np.random.default_rng(1).random(shape) < 0.5
    before = np.copy(mask)
    actual = masks.as_additive(mask, dtype) if dtype else masks.as_additive(mask.tolist())
    assert_same_bits(actual, np.where(mask, 0, -np.inf).astype(dtype or np.float32))
    assert_same_bits(mask, before)
