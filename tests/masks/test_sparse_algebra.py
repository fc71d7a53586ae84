"""Test compositions of sparse masks against the same operations on dense masks."""

import itertools
import operator

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from drawn_masks import drawn_mask
from drawn_problems import examples
from reference import assert_same_bits
from regard import masks
from regard.masks import Blocks, Ranges

OPERATORS = {"&": operator.and_, "|": operator.or_, "^": operator.xor, "==": operator.eq}
OPERATORS["!="] = operator.ne


def check_form(mask):
    """Assert what the kernels expect of the arrays."""
    rows = mask._sparse_rows()
    assert rows.shape == mask.shape
    assert rows.starts.shape[:-1] == mask.shape[:-2]
    assert rows.starts.dtype == rows.spans.dtype == np.int64
    assert rows.bits.dtype == np.uint8
    assert rows.spans.shape[1:] == (3,)
    assert rows.spans.flags.c_contiguous
    assert rows.bits.flags.c_contiguous
    assert rows.first_query >= 0
    assert rows.first_key >= 0
    if mask.shape[-2] == 1:
        assert rows.row_queries >= 2**60
        assert not rows.bits.size
    elif mask.shape[-2] == 0:
        assert rows.row_queries >= 1  # the size in the mask that this one is a view of
    elif isinstance(mask, Blocks):
        assert rows.row_queries == mask.block[0]
        assert rows.bits.shape[1:] == (mask.block[0], -(-mask.block[1] // 8))
    else:
        assert rows.row_queries == 1
    last = (mask.shape[-2] - 1 + rows.first_query) // rows.row_queries
    assert not mask.shape[-2] or last + 1 < rows.starts.shape[-1]
    for plane in np.ndindex(mask.shape[:-2]):
        starts = rows.starts[plane]
        for begin, end in itertools.pairwise(starts):
            first, last, number = rows.spans[begin:end].T
            whole = number == -1
            assert (first < last).all()
            assert (first[1:] >= last[:-1]).all()
            assert not ((first[1:] == last[:-1]) & whole[1:] & whole[:-1]).any()
            assert ((number >= -1) & (number < len(rows.bits))).all()
            if not whole.all():
                assert (last - first)[~whole].max() <= mask.block[1]


def check(mask, dense):
    assert_same_bits(mask.to_dense(), dense)
    assert mask.nnz == dense.sum()
    assert mask.density == (dense.sum() / dense.size if dense.size else 0)
    check_form(mask)


@examples(60)
@hypothesis.given(st.data())
def test_compositions(data):
    q_len, kv_len = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 40))
    drawn = [drawn_mask(data.draw, q_len, kv_len) for _ in range(data.draw(st.integers(1, 3)))]
    mask, dense = drawn[0]
    if len(drawn) > 1:
        mask, dense = masks.stack([m for m, _ in drawn]), np.stack([d for _, d in drawn])
        check(mask & drawn[0][0], dense & drawn[0][1])
    check(mask, dense)
    first, last = sorted(data.draw(st.integers(0, kv_len)) for _ in range(2))
    row = data.draw(st.integers(0, q_len - 1))
    for index in (np.s_[..., row:, first:last], np.s_[..., row : row + 1, first:]):
        check(mask[index], dense[index])
        check(~mask[index], ~dense[index])


CAUSAL = masks.sliding(10, window=(None, 0))
NEAR = masks.sliding(10, window=(2, 2))
DRAWN = np.random.default_rng(0).random((10, 10)) < 0.5
OPERANDS = {
    "ranges": NEAR,
    "causal": CAUSAL,
    "one row": Ranges(2, 5, kv_len=10),
    "heads": Ranges(np.arange(3)[:, None], 9, kv_len=10),
    "blocks": Blocks.from_dense(DRAWN, block=(4, 4)),
    "other blocks": Blocks.from_dense(DRAWN.T, block=(3, 5)),
    "blocks with a batch": Blocks.from_dense(np.stack([DRAWN, ~DRAWN])[:, None], block=(4, 4)),
    "dense": DRAWN,
    "dense keys": DRAWN[0],
    "dense padding": masks.padding([4, 10], 10),
    "dense queries": DRAWN[:, :1],
    "scalar": np.True_,
    "bool": False,
}


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize("left", OPERANDS)
def test_operators(left, sign):
    """Masks of ranges have ranges again; all others have blocks."""
    for name, right in OPERANDS.items():
        a, b = OPERANDS[left], right
        dense = [each.to_dense() if isinstance(each, masks.SparseMask) else each for each in (a, b)]
        if dense[0] is a and dense[1] is b:
            continue
        mask = OPERATORS[sign](a, b)
        wanted = OPERATORS[sign](*dense)
        check(mask, wanted)
        kinds = {Ranges if np.shape(each)[-1:] in ((), (1,)) else type(each) for each in (a, b)}
        assert isinstance(mask, Ranges) == (kinds == {Ranges}), name


def test_blocks_take_the_larger_grid():
    small, large = (Blocks.from_dense(DRAWN, block=block) for block in ((2, 4), (5, 3)))
    assert (small & large).block == (large & small).block == (5, 3)
    assert (small & CAUSAL).block == (CAUSAL & small).block == (2, 4)
    assert (CAUSAL & DRAWN).block == (128, 128)
    assert (small & DRAWN).block == (2, 4)
    tall = Blocks.from_dense(DRAWN, block=(4, 2))
    assert (tall | small).block == (4, 2)


def test_equal_blocks_share_their_bits():
    n = 4096
    diagonal = masks.from_function(lambda i, j: j <= i, n)
    assert diagonal._sparse_rows().bits.shape == (1, 128, 16)
    assert (diagonal | Ranges(0, 16))._sparse_rows().bits.shape[0] == 2
    assert (diagonal & masks.sliding(n, window=(100, None)))._sparse_rows().bits.shape[0] <= 4
