"""Test sparse masks made from SciPy's sparse arrays."""

import numpy as np
import pytest

from reference import assert_same_bits
from regard.masks import Blocks

sparse = pytest.importorskip("scipy.sparse", reason="pip install scipy")


def drawn(shape, density, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal(shape) * (random.random(shape) < density)


@pytest.mark.parametrize("density", [0, 0.1, 0.9])
@pytest.mark.parametrize("block", [None, (1, 1), (4, 2), (128, 128)])
def test_both_formats(density, block):
    dense = drawn((12, 18), density)
    for matrix, own in (
        (sparse.csr_array((dense != 0).astype(np.uint8)), (128, 128)),
        (sparse.bsr_array(dense, blocksize=(3, 6)), (3, 6)),
        (sparse.csr_array(dense), (128, 128)),
        (sparse.csr_matrix(dense), (128, 128)),
    ):
        mask = Blocks(matrix, block=block)
        assert_same_bits(mask.to_dense(), dense != 0)
        assert mask.block == (block or own)


def test_stored_zeros_are_hidden_and_nan_is_visible():
    dense = np.array([[1, 2, 0], [np.nan, 0, 3.0]])
    for matrix in (sparse.csr_array(dense), sparse.bsr_array(dense, blocksize=(1, 3))):
        matrix.data[matrix.data == 2] = 0
        wanted = np.array([[True, False, False], [True, False, True]])
        assert_same_bits(Blocks(matrix).to_dense(), wanted)


def test_columns_in_any_order():
    matrix = sparse.csr_array((np.ones(3), [2, 0, 1], [0, 2, 3]), shape=(2, 3))
    assert_same_bits(Blocks(matrix).to_dense(), matrix.toarray() != 0)
    matrix = sparse.bsr_array((np.ones((2, 2, 2)), [1, 0], [0, 2]), shape=(2, 4))
    assert Blocks(matrix).density == 1
