"""FlexAttention's block masks become sparse masks that show the same pairs."""

import itertools

import numpy as np
import pytest

import regard
from problem import drawn
from torch_problems import torch

from regard.torch import block_mask  # isort: skip

flex = pytest.importorskip("torch.nn.attention.flex_attention")
# PyTorch warns that FlexAttention is slow without torch.compile.
pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without:UserWarning")

DOCUMENT = torch.arange(300) // 70
PREFIX = torch.tensor([40, 130])
DRAWN = torch.from_numpy(drawn((3, 300, 300), np.float32) > 0.9)


def causal(b, h, q, k):
    return q >= k


MODS = {
    "all": flex.noop_mask,
    "none": lambda b, h, q, k: q < 0,
    "causal": causal,
    "prefixes of entries": lambda b, h, q, k: (k < PREFIX[b]) | (q >= k),
    "documents": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "random": lambda b, h, q, k: DRAWN[h, q, k],
    "windows of heads": lambda b, h, q, k: (q - k).abs() <= 30 * (h + 1) + 40 * b,
}
OF_PLANES = {"prefixes of entries": (2, 1), "random": (1, 3), "windows of heads": (2, 3)}
LENGTHS = {"documents": (300, 300)}


def made(name, lengths=(290, 300), size=128, planes=(1, 1)):
    """Return a block mask, and the same mask as a tensor."""
    planes, lengths = OF_PLANES.get(name, planes), LENGTHS.get(name, lengths)
    given = flex.create_block_mask(MODS[name], *planes, *lengths, device="cpu", BLOCK_SIZE=size)
    return given, flex.create_mask(MODS[name], *planes, *lengths, device="cpu")


def assert_shows(mask, dense):
    assert isinstance(mask, regard.masks.SparseMask)
    assert mask.shape == tuple(dense.shape)
    assert np.array_equal(mask.to_dense(), dense.numpy())


SIZES = 128, 32, (64, 256), (100, 48), 512
EACH_IN_ONE_SIZE = [
    pytest.param(name, size, marks=() if i % len(SIZES) == j else pytest.mark.slow)
    for i, name in enumerate(MODS)
    for j, size in enumerate(SIZES)
]


@pytest.mark.parametrize(("name", "size"), EACH_IN_ONE_SIZE)
def test_the_same_pairs_are_visible(name, size):
    given, dense = made(name, size=size)
    assert_shows(block_mask(given), dense)


@pytest.mark.parametrize("lengths", [(200, 300), (290, 140), (128, 128), (1, 1), (0, 7), (7, 0)])
@pytest.mark.parametrize("name", ["causal", "random"])
def test_adjusted_to_other_lengths(name, lengths):
    given, dense = made(name)
    assert_shows(block_mask(given._adjust(*lengths)), dense[..., : lengths[0], : lengths[1]])


FROM_LISTS = [
    # Blocks of 4 queries and 8 keys, in any order, some of them in both lists.
    ([[2, 1, 0]], [[[2, 0, 1], [1, 0, 0], [0, 0, 0]]], None, None),
    (
        [[1, 1, 3]],
        [[[1, 0, 0], [2, 1, 0], [2, 1, 0]]],
        [[1, 0, 1]],
        [[[2, 0, 1], [0, 0, 0], [1, 0, 0]]],
    ),
    ([[0, 0, 0]], [[[0, 0, 0]] * 3], [[3, 0, 2]], [[[0, 2, 1], [0, 0, 0], [1, 0, 2]]]),
]


@pytest.mark.parametrize("lists", FROM_LISTS)
@pytest.mark.parametrize("lengths", [None, (10, 21), (3, 24)])
@pytest.mark.parametrize("mod", [None, lambda b, h, q, k: (q + k) % 3 == 0])
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_from_kv_blocks(lists, lengths, mod, axes):
    """Whole blocks are those in the second list, whatever the function returns for them."""
    numbers, indices, of_whole, whole = (
        None if x is None else torch.tensor(x, dtype=torch.int32) for x in lists
    )
    tensors = [
        None if x is None else (x[0] if axes == 0 else x if axes == 1 else x[None])
        for x in (numbers, indices, of_whole, whole)
    ]
    given = flex.BlockMask.from_kv_blocks(
        *tensors, BLOCK_SIZE=(4, 8), mask_mod=mod, seq_lengths=lengths, compute_q_blocks=False
    )
    dense = torch.zeros(12, 24, dtype=torch.bool)
    for counts, blocks, is_whole in ((numbers, indices, False), (of_whole, whole, True)):
        for row in range(3) if counts is not None else ():
            for column in blocks[0, row, : counts[0, row]].tolist():
                for i, j in itertools.product(
                    range(4 * row, 4 * row + 4), range(8 * column, 8 * column + 8)
                ):
                    dense[i, j] |= is_whole or mod is None or (i + j) % 3 == 0
    q_len, kv_len = lengths or (12, 24)
    dense = dense[:q_len, :kv_len]
    assert_shows(block_mask(given), dense.expand(*(1,) * axes, *dense.shape))


def test_one_block_larger_than_the_mask():
    """FlexAttention makes such a mask if it gets none."""
    one = torch.ones(1, 1, 1, dtype=torch.int32)
    given = flex.BlockMask.from_kv_blocks(
        one, one[..., None] * 0, BLOCK_SIZE=1 << 30, mask_mod=causal, seq_lengths=(300, 200)
    )
    assert_shows(block_mask(given), torch.ones(300, 200).tril().bool()[None, None])


def test_hidden_blocks_are_neither_called_nor_stored():
    """A window in a text whose dense mask would take 69 GB."""
    rows = 2048
    row = torch.arange(rows, dtype=torch.int32)
    indices = torch.stack([row, (row - 1).clamp(min=0)], dim=-1)[None, None]
    numbers = torch.where(row > 0, 2, 1)[None, None]
    called = 0

    def window(b, h, q, k):
        nonlocal called
        called += 1
        return (q >= k) & (q - k < 128)

    length = rows * 128
    given = flex.BlockMask.from_kv_blocks(
        numbers, indices, mask_mod=window, seq_lengths=(length, length), compute_q_blocks=False
    )
    mask = block_mask(given)
    assert mask.nnz == 128 * length - 128 * 127 // 2
    assert mask.nbytes < 200_000
    assert called < 100
