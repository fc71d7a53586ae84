"""Wrong calls of regard.masks: dense makers, sparse masks, their indices and operators."""

import numpy as np
import pytest

from messages import check, each
from regard import masks
from regard.masks import Blocks, Ranges, Selected

MASK = Ranges([0, 1, 2], [1, 2, 3])
BATCH = masks.stack([MASK, MASK])
FLOATS, BITS = np.zeros((3, 3)), np.zeros((2, 2, 2))
PLANES = np.zeros((2, 3), int)
LARGE = np.array([2**64 - 1], np.uint64)  # -1 as a signed number
DEEP = np.zeros((1,) * 61, int)  # more axes than NumPy broadcasts, but not than it holds
SIZE = (2**20, 2**20)
HUGE = {"shape": SIZE, "block": SIZE}


def blocks(indptr=(0, 1, 2), indices=(0, 1), shape=(4, 4), block=(2, 2), **options):
    return Blocks(np.array(indptr), np.array(indices), shape=shape, block=block, **options)


def drawn(f, length=4, **options):
    return masks.from_function(f, length, **options)


DENSE = [
    (lambda: masks.causal(2, query_offset="start"), ValueError, "query_offset ... got 'start'"),
    (lambda: masks.window(2, window=np.array([1, 0, 0])), ValueError, "window must be a"),
    (lambda: masks.window(2, window=(0, -1)), ValueError, "window[1] must be at least 0, got -1"),
    (lambda: masks.padding([2, 4], 3), ValueError, "key_lengths must be in 0 .. kv_len = 3, got"),
    (lambda: masks.padding(LARGE, 2), ValueError, "key_lengths must ... got 18446744073709551615"),
    (lambda: masks.padding(2, 3, side="both"), ValueError, "side must be \"right\" ... got 'both'"),
    (lambda: masks.segments([0.0, 1.0]), TypeError, "query_segments must be an ... got float64"),
    (lambda: masks.segments(3), ValueError, "query_segments must have one number"),
    (lambda: masks.segments(PLANES, np.zeros((4, 3), int)), ValueError, "batch ... got shapes (2"),
    (lambda: masks.prefix(3, prefix_lengths=4), ValueError, "prefix_lengths must be in ... got 4"),
    (
        lambda: masks.prefix(3, prefix_lengths=[1, 2], query_offset=[1, 2, 3]),
        ValueError,
        "prefix_lengths and query_offset must broadcast ... got shapes (2,)",
    ),
    (lambda: masks.as_additive(np.tri(3)), TypeError, "mask must be bool (True = ... got float64"),
    (lambda: masks.as_additive(MASK), TypeError, "mask must be an ... got a ... call to_dense()"),
    (lambda: masks.check(None), TypeError, "mask must be an array of bool or float, got None"),
    (lambda: masks.check(np.tri(3, k=-1, dtype=bool)), ValueError, "mask hides all ... pass"),
]
RANGES = [
    (lambda: Ranges(FLOATS, 3), TypeError, "first must be an ... got an array ... pass a float"),
    (lambda: Ranges(0, 2.5), TypeError, "last must be an int ... pass a float"),
    (lambda: Ranges(0, 10**30), ValueError, "last must ... got 1000000000000000000000000000000"),
    (lambda: Ranges([0, 1], [1, 2, 3]), ValueError, "first and last must ... got shapes (2,)"),
    (lambda: Ranges(0, 2, kv=2), TypeError, "no argument kv ... its arguments are first, last"),
    (lambda: Ranges([0, 0], 2**62), ValueError, "a sparse mask must have fewer ... got shape (2"),
    (lambda: Selected([[0.5]]), TypeError, "indices must be an integer array, got float64"),
    (lambda: Selected([0, 1]), ValueError, "indices must have at least 2 ... got shape (2,)"),
    (lambda: Selected([[-2]]), ValueError, "indices must be numbers ... or -1 ... got -2"),
    (lambda: Selected([[5]], kv_len=5), ValueError, "indices must ... less than 5, got 5"),
    (lambda: Selected([[3]], kv_len=5, block=2), ValueError, "blocks of 2 ... got 3"),
    (lambda: Selected([[1]], block=0), ValueError, "block must be at least 1, got 0"),
    (
        lambda: Selected([[0], [2**61]]),
        ValueError,
        "a sparse mask must have fewer ... got shape (2",
    ),
    (lambda: masks.SparseMask(), TypeError, "SparseMask has no constructor"),
    (lambda: blocks([0, 2, 2], [1, 0]), ValueError, "indices must increase within"),
    (lambda: blocks([0, 0, 2], [1, 1]), ValueError, "indices must increase within"),
    (lambda: blocks([[0, 1, 2], [0, 0, 2]], [1, 0], shape=(2, 4, 4)), ValueError, "indices must"),
    (lambda: blocks(indices=[0, 2]), ValueError, "indices must be block columns in 0 .. 1, got 2"),
    (lambda: blocks(indices=np.array([0, 2**64 - 1], np.uint64)), ValueError, "indices"),
    (lambda: blocks(indices=[[0, 1]]), ValueError, "indices must have one axis, got shape (1, 2)"),
    (lambda: blocks([0, 1]), ValueError, "indptr must have 2 block rows ... got shape (2,)"),
    (lambda: blocks([0, 1, 3]), ValueError, "indptr must be in 0 .. ... got 3"),
    (lambda: blocks([0, 2, 1]), ValueError, "indptr must not decrease, got 1 after 2 at index 2"),
    (lambda: blocks(np.zeros((3, 3), int), shape=(2, 4, 4)), ValueError, "indptr"),
    (lambda: blocks(shape=(4,)), ValueError, "shape must be (..., q_len, kv_len), got (4,)"),
    (lambda: blocks(block=2), TypeError, "block must be a pair (queries, keys), got int"),
    (lambda: blocks(block=(0, 2)), ValueError, "block[0] must be at least 1, got 0"),
    (lambda: blocks(bits=BITS), TypeError, "bits must be bool, or uint8 ... got float64"),
    (lambda: blocks(bits=BITS[:1] > 0), ValueError, "bits must have shape (2, 2 ... got (1, 2"),
    (lambda: blocks(bits=BITS.astype("u1")), ValueError, "bits must have shape (2 ... got (2, 2"),
    (lambda: Blocks([0, 1], [0]), TypeError, "Blocks() needs shape"),
    (lambda: Blocks([0, 1], [0], **HUGE), ValueError, "blocks must have at most"),
    (lambda: Blocks.from_dense(FLOATS), TypeError, "mask must be bool (True = ... got float64"),
    (lambda: Blocks.from_dense([True]), ValueError, "mask must have at least ... got shape (1,)"),
]
MAKERS = [
    (lambda: masks.sliding(3, window=(1, 0), dilation=0), ValueError, "dilation must be"),
    (lambda: masks.documents([0], 1), ValueError, "key_ids must have one number ... got a single"),
    (lambda: masks.documents(PLANES, np.zeros((3, 3), int)), ValueError, "batch"),
    (lambda: masks.global_tokens(5, 4), ValueError, "tokens must be at most 4, got 5"),
    (lambda: masks.global_tokens(LARGE, 2), ValueError, "tokens must"),
    (lambda: masks.neighborhood((4, 4), 5), ValueError, "window * dilation must be at"),
    (lambda: masks.neighborhood((2, 2, 2, 2), 1), ValueError, "shape must have one to ... got 4"),
    (lambda: masks.neighborhood((4, 0), 3), ValueError, "shape[1] must be at least 1, got 0"),
    (lambda: masks.neighborhood(4, 3, is_causal=1), TypeError, "is_causal must be ... got int"),
    (lambda: masks.neighborhood((4, 4), 3, is_causal=[True]), ValueError, "is_causal ... got 1"),
    (lambda: masks.tree([-1, 1]), ValueError, "parents must precede their nodes, or"),
    (lambda: masks.tree([[-1, 0], [-1, -2]]), ValueError, "parents must precede ... got -2 for"),
    (lambda: masks.tree(LARGE), ValueError, "parents must fit in 64 ... got 18446744073709551615"),
    (lambda: masks.tree(-1), ValueError, "parents must have one number for ... got a single"),
    (lambda: masks.random_blocks(500, blocks_per_row=5), ValueError, "blocks_per_row ... got 5"),
    (lambda: masks.random_blocks(500, blocks_per_row=1, rng="0"), TypeError, "rng ... got str"),
    (lambda: drawn(3), TypeError, "f must be callable, got int"),
    (lambda: drawn(lambda i, j: i - j), TypeError, "f must return bools (True = ... got int64"),
    (lambda: drawn(lambda i, j: np.ones((2, 3), bool)), ValueError, "f must return ... got shape"),
    (lambda: drawn(lambda i, j: i < j, by_corners=1), TypeError, "by_corners must be ... got int"),
    (lambda: drawn(lambda i, j: i < j < 200, 300), ValueError, "f must not use ... write &, |, ~"),
    (lambda: masks.stack([]), ValueError, "masks must contain at least one mask, got none"),
    (lambda: masks.stack(3), TypeError, "masks must be a sequence of sparse masks, got int"),
    # An error of a generator is raised as it is.
    (lambda: masks.stack(MASK + each for each in "ab"), TypeError, "unsupported operand type(s)"),
    (lambda: masks.stack([MASK, FLOATS]), TypeError, "masks[1] must be a sparse ... got an array"),
    (lambda: masks.stack([MASK, BATCH]), ValueError, "masks must have one shape ... got (3, 3)"),
]
USES = [
    (lambda: MASK & FLOATS, TypeError, "a sparse mask combines ... got float64 ... pass a pair"),
    (lambda: PLANES ^ MASK, TypeError, "a sparse mask ... got int64 ... use mask.astype(bool) if"),
    (lambda: MASK & 1, TypeError, "unsupported operand type(s) for &: 'Ranges' and 'int'"),
    (lambda: np.logical_and(MASK, MASK), TypeError, "operand 'Ranges' does not support ufuncs"),
    (lambda: np.asarray(MASK), TypeError, "a sparse mask becomes a dense ... call to_dense()"),
    (lambda: bool(MASK), ValueError, "the truth value of a sparse"),
    (lambda: MASK & Ranges([0, 0], 3), ValueError, "the batch, heads and query ... got shapes (3"),
    (lambda: masks.sliding(10**6, window=(1, 0)).to_dense(), ValueError, "a dense mask ... pass"),
    (lambda: MASK.to_dense(max_bytes=8), ValueError, "a dense mask of shape ... pass a slice of"),
    (lambda: MASK[0], IndexError, "a sparse mask accepts integers ... write i:i + 1 for"),
    (lambda: MASK[::2], IndexError, "a sparse mask accepts integers ... got slice(None, None"),
    (lambda: MASK[np.arange(2)], IndexError, "a sparse mask accepts integers ... got an array"),
    (lambda: MASK[..., None], IndexError, "a sparse mask accepts ... got (Ellipsis ... write i:i"),
    (lambda: MASK[:, :, :], IndexError, "too many indices: the mask has 2 axes, got 3"),
    (lambda: MASK[..., :, ...], IndexError, "an index can only have a single ellipsis ('...')"),
    (lambda: BATCH[2], IndexError, "index 2 is out of bounds for axis 0 with size 2"),
]
AXES = {
    "Ranges": lambda: Ranges(DEEP, 1),
    "Blocks, shape": lambda: Blocks([0, 1], [0], shape=(1,) * 61),
    "from_dense": lambda: Blocks.from_dense(DEEP == 0),
    "sliding": lambda: masks.sliding(2, window=(1, 0), query_offset=DEEP),
    "global_tokens": lambda: masks.global_tokens(1, 2, query_offset=DEEP),
    "documents": lambda: masks.documents(DEEP),
    "tree": lambda: masks.tree(DEEP - 1),
    "and": lambda: masks.stack([Ranges(np.zeros((1,) * 31, int), 1)] * 2)[None] & MASK,
    "or": lambda: MASK[(None,) * 59] | MASK,
    "causal": lambda: masks.causal(2, query_offset=DEEP),
    "padding": lambda: masks.padding(DEEP, 2),
    "segments": lambda: masks.segments(DEEP),
}


@each([*DENSE, *RANGES, *MAKERS, *USES])
def test_masks(wrong, error, parts):
    check(wrong, error, parts)


@pytest.mark.parametrize("name", AXES)
def test_more_axes_than_numpy_broadcasts(name):
    check(AXES[name], ValueError, "must have at most 32 axes")


def test_arrays_of_scipy():
    csr = pytest.importorskip("scipy.sparse").csr_array(np.eye(2))
    twice = type(csr)((np.ones(2), np.zeros(2, int), np.array([0, 2, 2])), shape=(2, 2))
    for wrong, error, parts in (
        (lambda: Blocks(csr.tocoo()), TypeError, "bsr_array or a csr_array ... got coo"),
        (lambda: Blocks(csr, shape=(4, 4)), TypeError, "shape must be left out ... SciPy"),
        (lambda: Blocks(csr, [0]), TypeError, "indices must be left out"),
        (lambda: Blocks(csr, block=(0, 1)), ValueError, "block[0] must be at least 1, got 0"),
        (lambda: Blocks(twice), ValueError, "twice ... call sum_duplicates() first"),
    ):
        check(wrong, error, parts)


def test_an_error_of_a_function_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        drawn(lambda i, j: 1 / 0)


def test_other_objects_are_not_equal():
    assert (MASK == None) is False  # noqa: E711
    assert (MASK != "mask") is True
    assert MASK not in ["mask", 1]
