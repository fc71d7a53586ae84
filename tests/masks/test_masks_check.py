"""Test masks that `masks.check` must refuse, and masks that it must accept."""

import numpy as np
import pytest

from regard import masks
from regard.masks import Blocks, Ranges

INF, NAN = np.inf, np.nan
LOWEST = float(np.finfo(np.float32).min)


def triangle(q_len, kv_len=None, above=0):
    """Return True after the diagonal, where `nn.MultiheadAttention` hides keys."""
    return np.triu(np.ones((q_len, kv_len or q_len), bool), above)


EMPTY_ROWS = {
    "causal, an offset below 0": masks.causal(5, query_offset=-2),
    "a window past the keys": masks.window(5, 3, window=(0, 0)),
    "left padding and causal": masks.padding([5, 2], 5, side="left") & masks.causal(5),
    "scalar": False,
    "ranges": Ranges([0, 0], [0, 1]),
    "blocks": Blocks.from_dense(np.array([[True, False], [False, False]]), block=(2, 4)),
}
FINE = {
    "causal": masks.causal(5),
    "causal, an offset per batch entry": masks.causal(3, 9, query_offset=[6, 0, 2]),
    "causal and right padding": masks.causal(5) & masks.padding([5, 3, 1], 5),
    "a window after cached keys, open to the right": masks.window(
        4, 104, window=(16, None), query_offset=100
    ),
    "padding on the left": masks.padding([4, 2, 1], 5, side="left"),
    "causal documents": masks.segments([0, 0, 0, 1, 1]) & masks.causal(5),
    "a prefix": masks.prefix(6, prefix_lengths=3).to_dense(),
    "all but itself, two keys": ~np.eye(2, dtype=bool),
    "scalar": True,
    "one key for two queries": np.array([[True], [True]]),
    "forward heads and backward heads": np.stack([triangle(5), masks.causal(5)])[:, None],
    "a triangle that starts late": triangle(9, above=-4),
    "a key that later queries do not see": np.arange(5)[:, None] < [9, 9, 2, 9, 9],
    "no keys": np.zeros((3, 4, 0), bool),
    "a list": [[True, False], [True, True]],
    "additive, float16": masks.as_additive(masks.causal(5), np.float16),
    "a bias": np.random.default_rng(0).standard_normal((2, 4, 4)),
    "a bias on distance": -0.5 * np.abs(np.arange(300)[:, None] - np.arange(300)),
    "a bias with zeros and ones among others": np.array([[0.0, 1.0], [2.0, 0.0]]),
    "the lowest number beside larger ones": np.where(masks.causal(5), 0, LOWEST),
    "-10000 beside larger ones": np.where(masks.causal(5), 0, -1e4).astype(np.float16),
    "ranges": masks.sliding(9, window=(2, None)),
    "no ranges": Ranges(np.zeros(0, int), 3),
    "many heads": Blocks.from_dense(np.broadcast_to(masks.causal(6), (10**9, 64, 6, 6))),
}


@pytest.mark.parametrize("name", FINE)
def test_these_are_fine(name):
    mask = FINE[name]
    assert masks.check(mask) is mask
    assert masks.check(mask, allow_empty_rows=True) is mask


@pytest.mark.parametrize("name", EMPTY_ROWS)
def test_empty_rows_are_fine_if_meant(name):
    mask = EMPTY_ROWS[name]
    assert masks.check(mask, allow_empty_rows=True) is mask
    with pytest.raises(ValueError, match=r"hides all keys.*allow_empty_rows=True"):
        masks.check(mask)


def test_empty_rows_are_counted():
    mask = np.ones((2, 3, 4, 5), bool)
    mask[0, 2, 1] = mask[1, 0, 3] = False
    for each in (mask, Blocks.from_dense(mask, block=(2, 4))):
        with pytest.raises(ValueError, match=r"all keys from 2 of 24 rows .* \[0, 2, 1\]"):
            masks.check(each)


INVERTED = {
    "a triangle": (triangle(5, above=1), "j > i "),
    "broadcast": (np.broadcast_to(triangle(5, above=1), (10**9, 64, 5, 5)), "j > i "),
    "after cached keys": (triangle(3, 9, above=7), "j > i + 6 "),
    "more queries, last aligned": (triangle(5, 3, above=-1), "j > i - 2 "),
    "not causal": (~masks.causal(4, 10, query_offset=6), "j > i + 6 "),
    "and left padding": (~(masks.causal(5) & masks.padding([2, 4], 5, side="left")), "j > i "),
}


@pytest.mark.parametrize("allow_empty_rows", [False, True])
@pytest.mark.parametrize("name", INVERTED)
def test_inverted(name, allow_empty_rows):
    mask, diagonal = INVERTED[name]
    for each in (mask, Blocks.from_dense(mask, block=(2, 4))):
        with pytest.raises(ValueError, match=r"^mask looks inverted.*pass ~mask$") as raised:
            masks.check(each, allow_empty_rows=allow_empty_rows)
        assert diagonal in str(raised.value)
    if mask.ndim > 3:
        mask = mask[:1]
    right = ~mask
    assert masks.check(right, allow_empty_rows=True) is right
    for hidden in (-INF, -1e9, -1e4):
        with pytest.raises(ValueError, match=r"^mask looks inverted.*swap the two$"):
            masks.check(np.where(mask, 0, hidden), allow_empty_rows=allow_empty_rows)


@pytest.mark.parametrize(
    ("mask", "diagonal"),
    [
        (triangle(4, 9, above=5), "j >= i + 5 "),
        (masks.window(4, window=(0, None)), "j >= i "),
        (np.where(triangle(5), 0, -INF), "j >= i "),
        (Blocks.from_dense(triangle(6), block=(2, 4)), "j >= i "),
    ],
)
def test_mirrored(mask, diagonal):
    with pytest.raises(ValueError, match=r"^mask looks mirrored.*np\.tril in place") as raised:
        masks.check(mask)
    assert diagonal in str(raised.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.tri(4), "zeros and ones"),
        (np.array([[0, NAN], [0, 0]]), "NaN"),
        (np.array([[0, INF], [0, 0]]), r"\+inf"),
        (np.array([[0.0, 0.0], [-INF, -2e4]]), r"1 of 2 rows \(the first at \[1\]\) with finite"),
        (np.full((2, 2), -65504.0), "2 of 2 rows"),
    ],
)
def test_numbers_that_do_not_do_what_they_seem_to(mask, words, dtype):
    for allow_empty_rows in (False, True):
        with pytest.raises(ValueError, match=words):
            masks.check(mask.astype(dtype), allow_empty_rows=allow_empty_rows)


@pytest.mark.parametrize("seed", range(10))
def test_sparse_masks_have_the_verdict_of_dense_masks(seed):
    random = np.random.default_rng(seed)
    dense = triangle(5, 7, random.integers(-1, 4))
    dense |= random.random(7) < 0.3
    dense ^= random.random((5, 7)) < random.choice([0, 0.02])

    def verdict(mask):
        try:
            masks.check(mask)
        except ValueError as error:
            return str(error)
        return ""

    assert verdict(Blocks.from_dense(dense, block=(2, 3))) == verdict(dense)
