"""Test masks from functions of positions."""

import numpy as np
import pytest

from reference import assert_same_bits
from regard import masks

DOCUMENT = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 5] * 30)
LENGTH = np.array(7)
FUNCTIONS = {
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: (i - j < 20) & (j <= i),
    "between floats": lambda i, j: (i - j < 20.5) & (i - j > -0.5),
    "sink": lambda i, j: (j <= i) & ((i - j < 20) | (j < 4)),
    "blocks before": lambda i, j: (i // 16 >= j // 16) & (i // 16 - j // 16 < 2),
    "image": lambda i, j: (abs(i // 17 - j // 17) < 3) & (abs(i % 17 - j % 17) < 3),
    "circle": lambda i, j: (i // 17 - j // 17) ** 2 + np.square(i % 17 - j % 17) <= 9,
    "maximum": lambda i, j: np.maximum(i, 2 * j + 1) > 30,
    "negative quotient": lambda i, j: (i - 20) // -7 + j // 3 < 2,
    "bits": lambda i, j: ((i & 3) == (j & 3)) | ((i ^ j) < 4),
    "shifts": lambda i, j: (i >> 4 == j >> 4) | (j << 2 < i),
    "complement": lambda i, j: ~i + j < -3,
    "products": lambda i, j: (i * j < 300) & (-3 * i + j * 2 > -90),
    "on the right": lambda i, j: (100 - i > j) & (3 * j > 5) & (1000 // (i + 1) > 3),
    "a 0-d array": lambda i, j: i - j < LENGTH,
    "exclusive or": lambda i, j: (i < 40) ^ (j < 40) ^ True,
    "overflow": lambda i, j: i * 2**62 + j > 0,
    "overflow of absolute values": lambda i, j: abs(i - (2**63 - 1) - j) > 0,
    "nothing": lambda i, j: np.False_,
    "only keys": lambda i, j: j > 33,
    "broadcast by hand": lambda i, j: np.ones(j.shape, bool),
    "an array of documents": lambda i, j: DOCUMENT[i] == DOCUMENT[j],
    "where": lambda i, j: np.where(i < 20, j < 20, j >= 20),
    "as types": lambda i, j: i.astype(np.float32) > j,
    "unsigned": lambda i, j: i - np.uint64(5) > j,
    "sum of bools": lambda i, j: (i < 5) + (j < 5) > 1,
    "branches": lambda i, j: (j <= i) if np.all(i >= 0) else (j > i),
}


@pytest.mark.filterwarnings("ignore:.*overflow:RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    f = FUNCTIONS[name]
    for q_len, kv_len, block in [
        (60, 60, (8, 8)),
        (90, 70, (16, 5)),
        (1, 200, (4, 64)),
        (5, 3, None),
        (0, 4, None),
        (4, 0, None),
    ]:
        options = {"block": block} if block else {}
        mask = masks.from_function(f, q_len, kv_len, **options)
        wanted = f(np.arange(q_len)[:, None], np.arange(kv_len)[None])
        assert_same_bits(mask.to_dense(), np.array(np.broadcast_to(wanted, (q_len, kv_len))))


def test_by_corners():
    computed = []

    def causal_window(i, j):
        computed.append(i.size * j.size)
        return (j <= i) & (i - j < 5000)

    n = 2**16
    mask = masks.from_function(causal_window, n, by_corners=True)
    blocks = n // 128
    assert sum(computed) == (2 * blocks) ** 2 + 128**2 * (3 * blocks - 2 * 40 + 1)
    first = np.maximum(np.arange(n) - 4999, 0)
    assert (mask ^ masks.Ranges(first, np.arange(n) + 1)).nnz == 0


@pytest.mark.parametrize("name", ["causal", "window", "sink", "blocks before", "only keys"])
def test_corners_of_regions_that_are_wider_than_a_block(name):
    f = FUNCTIONS[name]
    for q_len, kv_len, block in [
        (60, 60, (8, 4)),
        (90, 70, (16, 3)),
        (1, 200, (4, 16)),
        (0, 5, (8, 8)),
        (5, 0, (8, 8)),
    ]:
        mask = masks.from_function(f, q_len, kv_len, block=block, by_corners=True)
        assert_same_bits(mask.to_dense(), masks.from_function(f, q_len, kv_len).to_dense())


def test_corners_do_not_show_what_is_between_them():
    assert masks.from_function(lambda i, j: j == 5, 16, block=(8, 8), by_corners=True).nnz == 0


@pytest.mark.parametrize("name", ["window", "image", "where", "an array of documents"])
def test_a_function_never_meets_the_square(name):
    shapes = []

    def f(i, j):
        shapes.append((i.size, j.size))
        return FUNCTIONS[name](i, j)

    masks.from_function(f, 300, block=(16, 16))
    assert max(rows for rows, _ in shapes) == 16
