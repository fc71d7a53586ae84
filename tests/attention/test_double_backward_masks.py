"""Test second-order gradients under masks: sparse and dense masks give the same bits, and the
blocks contain the visible keys."""

import numpy as np
import pytest

import regard
import sparse_cases
from gradient_cases import drawn
from reference import assert_same_bits
from regard import masks
from regard._arguments.masks import Masks
from regard._arguments.positions import Positions
from regard._gradients.blocks import Visibility, most_scores

LENGTHS = (300, 700)
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "query_offset": "end"},
    "window": {"window": (90, 30), "query_offset": 100, "key_lengths": 650},
    "biases": {"alibi_slopes": [0.1, 0.2], "distance_bias": np.sin(np.arange(31.0)), "softcap": 3},
    "hidden distances": {
        "distance_bias": np.where(np.arange(401) % 7 == 0, -np.inf, 0.1),
        "query_offset": 200,
    },
}


def second_order(arrays, mask, **options):
    """Return the second-order gradients of a call, for drawn gradients."""
    state = regard.scaled_dot_product_attention(*arrays, mask, **options, return_lse=True)
    given = [drawn(x.shape, x.dtype, seed) for seed, x in enumerate((*arrays, state[0]), start=5)]
    double_backward = regard.scaled_dot_product_attention_double_backward
    return double_backward(*given, *arrays, *state, mask, **options)


def arrays_of(dtype, q_len=LENGTHS[0], kv_len=LENGTHS[1]):
    shapes = (1, 2, q_len, 8), (1, 1, kv_len, 8), (1, 1, kv_len, 6)
    return [drawn(shape, dtype, seed) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", sparse_cases.NAMES)
def test_sparse_and_dense_masks_give_the_same_bits(name, options):
    arrays = arrays_of(np.dtype(np.float32))
    sparse = sparse_cases.sparse_masks(1, 2, *LENGTHS)[name]
    dense = sparse_cases.dense(sparse, LENGTHS[1])
    found, wanted = (second_order(arrays, mask, **OPTIONS[options]) for mask in (sparse, dense))
    assert_same_bits(tuple(found), tuple(wanted))


def test_a_mask_that_shows_everything_changes_no_bit():
    arrays = arrays_of(np.dtype(np.float64))
    for options in OPTIONS.values():
        wanted = second_order(arrays, None, **options)
        for mask in (np.ones((1, 1), bool), masks.Ranges(0, LENGTHS[1]), np.zeros((300, 700))):
            assert_same_bits(tuple(second_order(arrays, mask, **options)), tuple(wanted))


def test_hidden_distances_may_hold_anything():
    """A distance of -inf hides NaN, as -inf in a float mask does."""
    table = np.array([-np.inf, 0.5, 0.0, -np.inf, -np.inf])  # the previous key, and its own
    arrays = arrays_of(np.dtype(np.float64), 5, 9)
    wanted = second_order(arrays, None, distance_bias=table)
    mask = np.tri(5, 9, 0, bool) & ~np.tri(5, 9, -2, bool)
    bias = np.where(np.eye(5, 9, -1, bool), 0.5, 0.0)
    for name, part, other in zip(
        wanted._fields, wanted, second_order(arrays, (mask, bias)), strict=True
    ):
        np.testing.assert_allclose(part, other, rtol=1e-12, atol=1e-14, err_msg=name)
    for x in arrays[1:]:
        x[..., 5:, :] = np.nan
    assert_same_bits(tuple(second_order(arrays, None, distance_bias=table)), tuple(wanted))


def blocks(mask, length, **options):
    positions = Positions.of(options, length, length)
    found = list(Visibility(positions, Masks.of(mask), None).blocks())
    sizes = [block.shape for block in found]
    most = most_scores(positions)
    assert all(rows * keys <= most for rows, keys in sizes)
    assert most <= max(2**18, length)
    return sum(rows * keys for rows, keys in sizes), found


def test_blocks_of_documents_have_their_own_keys():
    length, document = 100_000, 2000
    for mask in (
        masks.documents(np.arange(length) // document),
        masks.Blocks.from_dense(np.ones((document, document), bool), block=(100, 100)),
    ):
        rows = mask.shape[-2]
        scores, _ = blocks(mask[:rows], rows, is_causal=True)
        assert scores < 1.1 * rows * (document + 2 * 128)


def test_blocks_of_dense_masks_too():
    mask = masks.documents(np.arange(3000) // 300)
    sparse, dense = (blocks(each, 3000)[1] for each in (mask, mask.to_dense()))
    assert [block[:2] for block in sparse] == [block[:2] for block in dense]
    for one, other in zip(sparse, dense, strict=True):
        assert (one.seen is None) == (other.seen is None)
        assert one.seen is None or np.array_equal(one.seen, other.seen)


def test_blocks_of_hidden_rows_are_left_out():
    mask = masks.Ranges(np.zeros(1000, int), np.where(np.arange(1000) // 200 == 2, 7, 0))
    scores, found = blocks(mask, 1000)
    assert scores <= 7 * (200 + 2 * 128)
    assert {(block.keys.start, block.keys.stop) for block in found} == {(0, 7)}
