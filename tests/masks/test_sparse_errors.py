"""Test errors of sparse masks: their class, and a message that names the argument and what was
passed."""

import numpy as np
import pytest

from regard import masks
from regard.masks import Blocks, Ranges

MASK = Ranges([0, 1, 2], [1, 2, 3])
BATCH = masks.stack([MASK, MASK])
GRID = Blocks.from_dense(np.eye(3, dtype=bool), block=(2, 2))
FLOATS = np.zeros((3, 3))


def blocks(indptr=(0, 1, 2), indices=(0, 1), shape=(4, 4), block=(2, 2), **options):
    return Blocks(np.array(indptr), np.array(indices), shape=shape, block=block, **options)


RANGES = [
    (
        lambda: Ranges(FLOATS, 3),
        TypeError,
        "first must be an int or an integer array, got an array of float64 of shape (3, 3): Ranges "
        "needs positions of keys; pass a float mask as mask=, or in a pair (sparse mask, float "
        "mask)",
    ),
    (lambda: Ranges(0, 2.5), TypeError, "last must be an int or an integer array, got 2.5: Ranges"),
    (lambda: Ranges([0.0], 2), TypeError, "first must be an int or an integer array, got float64"),
    (lambda: Ranges(True, 2), TypeError, "first must be an int or an integer array, got bool"),
    (lambda: Ranges(None, 2), TypeError, "first must be an int or an integer array, got NoneType"),
    (lambda: Ranges(0, 10**30), ValueError, f"last must fit in 64 bits, got {10**30}"),
    (
        lambda: Ranges([0, 1], [1, 2, 3]),
        ValueError,
        "first and last must broadcast, got shapes (2,) and (3,)",
    ),
    (lambda: Ranges(0, 2, kv_len=2.0), TypeError, "kv_len must be an int, got float"),
    (lambda: Ranges(0, 2, kv_len=-1), ValueError, "kv_len must be at least 0, got -1"),
    (lambda: Ranges(0, 2, kv=2), TypeError, "Ranges() has no argument kv"),
    (
        lambda: Ranges([0, 0], 2**62),
        ValueError,
        "a sparse mask must have fewer than 2**62 pairs of rows and keys, got shape "
        "(2, 4611686018427387904)",
    ),
    (
        lambda: masks.SparseMask(),
        TypeError,
        "SparseMask has no constructor: build a mask with masks.Ranges or masks.Blocks",
    ),
]
BLOCKS = [
    (
        lambda: blocks([0, 2, 2], [1, 0]),
        ValueError,
        "indices must increase within a block row, got 0 after 1 in block row 0",
    ),
    (
        lambda: blocks([0, 0, 2], [1, 1]),
        ValueError,
        "indices must increase within a block row, got 1 after 1 in block row 1",
    ),
    (
        lambda: blocks([[0, 1, 2], [0, 0, 2]], [1, 0], shape=(2, 4, 4)),
        ValueError,
        "indices must increase within a block row, got 0 after 1 in block row 1",
    ),
    (
        lambda: blocks(indices=[0, 2]),
        ValueError,
        "indices must be block columns in 0 .. 1, got 2",
    ),
    (
        lambda: blocks(indices=[-1, 1]),
        ValueError,
        "indices must be block columns in 0 .. 1, got -1",
    ),
    (
        lambda: blocks(indices=[[0, 1]]),
        ValueError,
        "indices must have one axis, got shape (1, 2)",
    ),
    (
        lambda: blocks(indices=[0.0, 1.0]),
        TypeError,
        "indices must be an int or an integer array, got float64",
    ),
    (
        lambda: blocks([0, 1]),
        ValueError,
        "indptr must have 2 block rows + 1 = 3 numbers for q_len 4 and blocks of 2 queries, got "
        "shape (2,)",
    ),
    (
        lambda: blocks([0.0, 1.0, 2.0]),
        TypeError,
        "indptr must be an int or an integer array, got float64",
    ),
    (lambda: blocks(0), ValueError, "indptr must have 2 block rows + 1 = 3 numbers"),
    (
        lambda: blocks([0, 1, 3]),
        ValueError,
        "indptr must be in 0 .. 2, the number of indices, got 3",
    ),
    (
        lambda: blocks([-1, 1, 2]),
        ValueError,
        "indptr must be in 0 .. 2, the number of indices, got -1",
    ),
    (
        lambda: blocks([0, 2, 1]),
        ValueError,
        "indptr must not decrease, got 1 after 2 at index 2",
    ),
    (
        lambda: blocks(np.zeros((3, 3), int), shape=(2, 4, 4)),
        ValueError,
        "indptr must broadcast to the axes (2,) of shape before its last two, got shape (3, 3)",
    ),
    (lambda: blocks(shape=4), TypeError, "shape must be (..., q_len, kv_len), got int"),
    (lambda: blocks(shape=(4,)), ValueError, "shape must be (..., q_len, kv_len), got (4,)"),
    (lambda: blocks(shape=(4, 4.0)), TypeError, "shape[1] must be an int, got float"),
    (lambda: blocks(shape=(4, -4)), ValueError, "shape[1] must be at least 0, got -4"),
    (lambda: blocks(block=2), TypeError, "block must be a pair (queries, keys), got int"),
    (lambda: blocks(block="22"), TypeError, "block must be a pair (queries, keys), got str"),
    (
        lambda: blocks(block=(2, 2, 2)),
        ValueError,
        "block must be a pair (queries, keys), got 3 numbers",
    ),
    (lambda: blocks(block=(0, 2)), ValueError, "block[0] must be at least 1, got 0"),
    (lambda: blocks(block=(2, 2.0)), TypeError, "block[1] must be an int, got float"),
    (
        lambda: blocks(bits=np.zeros((2, 2, 2))),
        TypeError,
        "bits must be bool, or uint8 of packed bits, got float64",
    ),
    (
        lambda: blocks(bits=np.zeros((1, 2, 2), bool)),
        ValueError,
        "bits must have shape (2, 2, 2) for 2 blocks of 2 x 2 in bool, got (1, 2, 2)",
    ),
    (
        lambda: blocks(bits=np.zeros((2, 2, 2), np.uint8)),
        ValueError,
        "bits must have shape (2, 2, 1) for 2 blocks of 2 x 2 in uint8, got (2, 2, 2)",
    ),
    (lambda: Blocks([0, 1], [0]), TypeError, "Blocks() needs shape"),
    (lambda: Blocks([0, 1], shape=(2, 2)), TypeError, "Blocks() needs indices"),
    (lambda: Blocks([0, 1], [0], shape=(2, 2), size=3), TypeError, "Blocks() has no argument size"),
    (
        lambda: Blocks.from_dense(FLOATS),
        TypeError,
        "mask must be bool (True = may attend), got float64",
    ),
    (
        lambda: Blocks.from_dense([True]),
        ValueError,
        "mask must have at least two axes, got shape (1,)",
    ),
]
USES = [
    (
        lambda: MASK & FLOATS,
        TypeError,
        "a sparse mask combines with bool masks, got float64: pass a pair (sparse mask, float "
        "mask) as mask= to combine it with a float mask",
    ),
    (lambda: np.float32(0) | GRID, TypeError, "combines with bool masks, got float32"),
    (
        lambda: np.zeros((3, 3), int) ^ MASK,
        TypeError,
        "a sparse mask combines with bool masks, got int64: use mask.astype(bool) if 1 means may "
        "attend",
    ),
    (lambda: MASK & 1, TypeError, "unsupported operand type"),
    (lambda: [True] | MASK, TypeError, "unsupported operand type"),
    (lambda: np.logical_and(MASK, MASK), TypeError, "does not support ufuncs"),
    (lambda: np.asarray(MASK), TypeError, "call to_dense()"),
    (lambda: np.asarray(GRID, bool), TypeError, "call to_dense()"),
    (lambda: masks.as_additive(MASK), TypeError, "call to_dense()"),
    (lambda: bool(MASK), ValueError, "the truth value of a sparse mask is ambiguous"),
    (
        lambda: MASK & Ranges([0, 0], 3),
        ValueError,
        "the batch, heads and query axes of two masks must broadcast, got shapes (3, 3) and (2, 3)",
    ),
    (
        lambda: BATCH & masks.stack([MASK] * 3),
        ValueError,
        "the batch, heads and query axes of two masks must broadcast, got shapes (2, 3, 3) and "
        "(3, 3, 3)",
    ),
    (
        lambda: masks.sliding(10**6, window=(1, 0)).to_dense(),
        ValueError,
        "a dense mask of shape (1000000, 1000000) needs 1,000,000,000,000 bytes, but max_bytes is "
        "2,147,483,648: pass a slice of the mask, or a larger max_bytes=",
    ),
    (lambda: MASK.to_dense(max_bytes=8), ValueError, "needs 9 bytes, but max_bytes is 8"),
    (lambda: MASK.to_dense(max_bytes=9.0), TypeError, "max_bytes must be an int, got float"),
    (
        lambda: masks.from_function(lambda i, j: i < j < 200, 300),
        ValueError,
        "write &, |, ~, and parentheses around comparisons",
    ),
    (lambda: masks.stack([]), ValueError, "masks must contain at least one mask, got none"),
    (lambda: masks.stack(3), TypeError, "masks must be a sequence of sparse masks, got int"),
    # An error of a generator is raised as it is.
    (lambda: masks.stack(MASK + each for each in "ab"), TypeError, "unsupported operand type"),
    (
        lambda: masks.stack([MASK, FLOATS]),
        TypeError,
        "masks[1] must be a sparse mask, got an array of float64 of shape (3, 3)",
    ),
    (
        lambda: masks.stack([MASK, BATCH]),
        ValueError,
        "masks must have one shape, got (3, 3) and masks[1] with (2, 3, 3)",
    ),
]
POSSIBLE = (
    "a sparse mask accepts integers, None and an ellipsis on the batch and heads axes, and slices "
    "without steps on all axes, got "
)
INDICES = [
    (lambda: MASK[0], POSSIBLE + "0: write i:i + 1 for one query or one key"),
    (lambda: MASK[:, 0], POSSIBLE + "(slice(None, None, None), 0): write i:i + 1"),
    (lambda: BATCH[..., 0, :], POSSIBLE),
    (lambda: MASK[::2], POSSIBLE + "slice(None, None, 2)"),
    (lambda: BATCH[::-1], POSSIBLE + "slice(None, None, -1)"),
    (lambda: MASK[[0, 1]], POSSIBLE + "[0, 1]"),
    (lambda: BATCH[True], POSSIBLE + "True"),
    (lambda: MASK[np.arange(2)], POSSIBLE + "an array of int64 of shape (2,)"),
    (lambda: MASK["q"], POSSIBLE + "'q'"),
    (lambda: MASK[..., None], POSSIBLE),
    (lambda: MASK[:, :, :], "too many indices: the mask has 2 axes, got 3"),
    (lambda: MASK[..., :, ...], "an index can only have a single ellipsis"),
    (lambda: BATCH[2], "index 2 is out of bounds"),
]
MAKERS = [
    (lambda: masks.sliding(3.0, window=(1, 0)), TypeError, "q_len must be an int, got float"),
    (lambda: masks.sliding(3, -1, window=(1, 0)), ValueError, "kv_len must be at least 0, got -1"),
    (lambda: masks.sliding(3, window=1), TypeError, "window must be a pair (left, right), got int"),
    (
        lambda: masks.sliding(3, window=(1, -1)),
        ValueError,
        "window[1] must be at least 0, got -1",
    ),
    (
        lambda: masks.from_function(lambda i, j: i < j, 3, by_corners=1),
        TypeError,
        "by_corners must be True or False, got int",
    ),
    (
        lambda: masks.sliding(3, window=(1, 0), dilation=0),
        ValueError,
        "dilation must be at least 1, got 0",
    ),
    (
        lambda: masks.sliding(3, window=(1, 0), query_offset="start"),
        ValueError,
        "query_offset must be an int, an integer array or \"end\", got 'start'",
    ),
    (lambda: masks.documents([0.0]), TypeError, "query_ids must be an integer array, got float64"),
    (
        lambda: masks.documents([0], 1),
        ValueError,
        "key_ids must have one number for each row, got a single number",
    ),
    (
        lambda: masks.documents(np.zeros((2, 3), int), np.zeros((3, 3), int)),
        ValueError,
        "batch axes of query_ids and key_ids must broadcast, got shapes (2, 3) and (3, 3)",
    ),
    (
        lambda: masks.global_tokens(5, 4),
        ValueError,
        "tokens must be at most 4, got 5",
    ),
    (lambda: masks.global_tokens(-1, 4), ValueError, "tokens must be at least 0, got -1"),
    (
        lambda: masks.global_tokens([0, 4], 4),
        ValueError,
        "tokens must be in 0 .. kv_len - 1 = 3, got 4",
    ),
    (
        lambda: masks.global_tokens([[0]], 4),
        ValueError,
        "tokens must be an int or have one axis, got shape (1, 1)",
    ),
    (
        lambda: masks.global_tokens([True, False], 2),
        TypeError,
        "tokens must be an int or an integer array, got bool",
    ),
    (
        lambda: masks.neighborhood((4, 4), 5),
        ValueError,
        "window * dilation must be at most the size of the grid, got 5 * 1 for 4 tokens on axis 0",
    ),
    (
        lambda: masks.neighborhood((8, 4), 3, dilation=(2, 2)),
        ValueError,
        "window * dilation must be at most the size of the grid, got 3 * 2 for 4 tokens on axis 1",
    ),
    (
        lambda: masks.neighborhood((2, 2, 2, 2), 1),
        ValueError,
        "shape must have one to three axes, got 4",
    ),
    (
        lambda: masks.neighborhood((4, 4), (3,)),
        ValueError,
        "window must have one element for each of 2 axes, got 1",
    ),
    (lambda: masks.neighborhood((4, 0), 3), ValueError, "shape[1] must be at least 1, got 0"),
    (lambda: masks.neighborhood(4, 3.0), TypeError, "window must be an int, got float"),
    (
        lambda: masks.neighborhood("44", 3),
        TypeError,
        "shape must be one int or a sequence of int, got str",
    ),
    (
        lambda: masks.neighborhood(4, 3, is_causal=1),
        TypeError,
        "is_causal must be True or False, got int",
    ),
    (
        lambda: masks.neighborhood((4, 4), 3, is_causal=[True]),
        ValueError,
        "is_causal must have one element for each of 2 axes, got 1",
    ),
    (
        lambda: masks.tree([-1, 1]),
        ValueError,
        "parents must precede their nodes, or be -1, got 1 for node 1",
    ),
    (
        lambda: masks.tree([[-1, 0], [-1, -2]]),
        ValueError,
        "parents must precede their nodes, or be -1, got -2 for node 1",
    ),
    (lambda: masks.tree(-1), ValueError, "parents must have one number for each node"),
    (lambda: masks.tree([-1.0]), TypeError, "parents must be an integer array, got float64"),
    (lambda: masks.tree([-1], past=-1), ValueError, "past must be at least 0, got -1"),
    (
        lambda: masks.random_blocks(500, blocks_per_row=5),
        ValueError,
        "blocks_per_row must be at most 4, got 5",
    ),
    (
        lambda: masks.random_blocks(500, blocks_per_row=1, rng="0"),
        TypeError,
        "rng must be a numpy.random.Generator, an int or None, got str",
    ),
    (
        lambda: masks.random_blocks(500, blocks_per_row=1, heads=-1),
        ValueError,
        "heads must be at least 0, got -1",
    ),
    (lambda: masks.from_function(3, 4), TypeError, "f must be callable, got int"),
    (
        lambda: masks.from_function(lambda i, j: i - j, 4),
        TypeError,
        "f must return bools (True = may attend), got int64",
    ),
    (
        lambda: masks.from_function(lambda i, j: np.ones((2, 3), bool), 4),
        ValueError,
        "f must return an array that broadcasts to (4, 4) for indices of shape (4, 1) and (1, 4), "
        "got shape (2, 3)",
    ),
    (
        lambda: masks.from_function(lambda i, j: i < j, 4, block=4),
        TypeError,
        "block must be a pair (queries, keys), got int",
    ),
]


DEEP = np.zeros((1,) * 61, int)  # more axes than NumPy broadcasts, but not than it holds
AXES = [
    (call, ValueError, "must have at most 32 axes, got ")
    for call in (
        lambda: Ranges(DEEP, 1),
        lambda: Ranges(0, DEEP),
        lambda: Blocks(DEEP, [], shape=(1, 1)),
        lambda: Blocks([0, 1], [0], shape=(1,) * 61),
        lambda: Blocks.from_dense(DEEP == 0),
        lambda: masks.sliding(2, window=(1, 0), query_offset=DEEP),
        lambda: masks.sliding(2, window=(1, 0), dilation=2, query_offset=DEEP),
        lambda: masks.global_tokens(1, 2, query_offset=DEEP),
        lambda: masks.documents(DEEP),
        lambda: masks.documents([0], DEEP),
        lambda: masks.tree(DEEP - 1),
        lambda: masks.stack([Ranges(np.zeros((1,) * 31, int), 1)] * 2)[None] & MASK,
        lambda: MASK & (DEEP == 0),
        lambda: MASK[(None,) * 59] | MASK,
        lambda: masks.causal(2, query_offset=DEEP),
        lambda: masks.window(2, window=(1, 0), query_offset=DEEP),
        lambda: masks.padding(DEEP, 2),
        lambda: masks.prefix(2, prefix_lengths=DEEP),
        lambda: masks.segments(DEEP),
    )
]
LARGE = np.array([2**64 - 1], np.uint64)  # -1 as a signed number
UNSIGNED = [
    (call, ValueError, f"{2**64 - 1}")
    for call in (
        lambda: blocks(indices=np.array([0, 2**64 - 1], np.uint64)),
        lambda: Blocks(np.array([0, 2**64 - 1], np.uint64), [0], shape=(1, 1)),
        lambda: masks.global_tokens(LARGE, 2),
        lambda: masks.padding(LARGE, 2),
        lambda: masks.prefix(2, prefix_lengths=LARGE),
        lambda: masks.tree(LARGE),
    )
]


@pytest.mark.parametrize(
    ("call", "error", "message"), RANGES + BLOCKS + USES + MAKERS + AXES + UNSIGNED
)
def test_errors(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize(("call", "message"), INDICES)
def test_errors_of_indices(call, message):
    with pytest.raises(IndexError) as raised:
        call()
    assert message in str(raised.value)


def test_an_error_of_a_function_reaches_the_caller():
    def f(i, j):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        masks.from_function(f, 4)


def test_other_objects_are_not_equal():
    assert (MASK == None) is False  # noqa: E711
    assert (MASK != "mask") is True
    assert MASK not in ["mask", 1]
