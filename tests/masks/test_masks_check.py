"""Test masks that `masks.check` must refuse, and masks that it must accept."""

import numpy as np
import pytest

from regard import masks

INF, NAN = np.inf, np.nan
LOWEST = float(np.finfo(np.float32).min)


def triangle(q_len, kv_len=None, above=0):
    """Return True after the diagonal, where `nn.MultiheadAttention` hides keys."""
    return np.triu(np.ones((q_len, kv_len or q_len), bool), above)


def batch_of(*matrices):
    return np.stack(matrices)[:, None]


EMPTY_ROWS = {
    "causal, an offset below 0": masks.causal(5, query_offset=-2),
    "causal, more queries than keys": masks.causal(6, 4, query_offset=-2),
    "a window past the keys": masks.window(5, 3, window=(0, 0)),
    "left padding and causal": masks.padding([5, 2], 5, side="left") & masks.causal(5),
    "a sequence of length 0": masks.padding([5, 0], 5),
    "nothing": np.zeros((4, 4), bool),
    "one hidden key": np.zeros((1, 1), bool),
    "scalar": False,
    "strictly before": np.tri(5, k=-1, dtype=bool),
    "a row of -inf": np.array([[0, -INF], [-INF, -INF]]),
}
FINE = {
    "causal": masks.causal(5),
    "causal, two keys": masks.causal(2),
    "causal, after cached keys": masks.causal(3, 9, query_offset=6),
    "causal, more keys": masks.causal(3, 9),
    "causal, an offset per batch entry": masks.causal(3, 9, query_offset=[6, 0, 2]),
    "causal and right padding": masks.causal(5) & masks.padding([5, 3, 1], 5),
    "a window": masks.window(9, window=(2, 1)),
    "a window, open to the right": masks.window(9, window=(2, None)),
    "a window, open to the left": masks.window(9, window=(None, 2)),
    "a window after cached keys, open to the right": masks.window(
        4, 104, window=(16, None), query_offset=100
    ),
    "a causal window after cached keys": masks.window(4, 104, window=(16, 0), query_offset=100),
    "padding": masks.padding([4, 2, 1], 5),
    "padding on the left": masks.padding([4, 2, 1], 5, side="left"),
    "padding on the left, all rows": np.tile(masks.padding(7, 10, side="left"), (4, 1)),
    "padding on the right, all rows": np.tile(masks.padding(7, 10), (4, 1)),
    "documents": masks.segments([0, 0, 0, 1, 1]),
    "causal documents": masks.segments([0, 0, 0, 1, 1]) & masks.causal(5),
    "a prefix": masks.prefix(6, prefix_lengths=3).to_dense(),
    "all but itself": ~np.eye(5, dtype=bool),
    "all but itself, two keys": ~np.eye(2, dtype=bool),
    "itself": np.eye(4, dtype=bool),
    "all": np.ones((4, 4), bool),
    "one key": np.ones((1, 1), bool),
    "scalar": True,
    "one row": np.array([False, True, True]),
    "one query": np.array([[False, True, True, True]]),
    "one key for two queries": np.array([[True], [True]]),
    "forward heads and backward heads": batch_of(triangle(5), masks.causal(5)),
    "a triangle that starts late": triangle(9, above=-4),
    "a key that later queries do not see": np.arange(5)[:, None] < [9, 9, 2, 9, 9],
    "no queries": np.zeros((3, 0, 4), bool),
    "no keys": np.zeros((3, 4, 0), bool),
    "a list": [[True, False], [True, True]],
    "additive": masks.as_additive(masks.causal(5)),
    "additive, float16": masks.as_additive(masks.causal(5), np.float16),
    "zeros": np.zeros((4, 4)),
    "a bias": np.random.default_rng(0).standard_normal((2, 4, 4)),
    "a bias on distance": -0.5 * np.abs(np.arange(300)[:, None] - np.arange(300)),
    "a bias with zeros and ones among others": np.array([[0.0, 1.0], [2.0, 0.0]]),
    "the lowest number beside larger ones": np.where(masks.causal(5), 0, LOWEST),
    "-10000 beside larger ones": np.where(masks.causal(5), 0, -1e4).astype(np.float16),
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


def test_an_empty_row_of_a_bool_mask_may_be_inverted():
    padding = np.array([[[True] * 4], [[False] * 4]])
    with pytest.raises(ValueError, match=r"0: pass ~mask if its True means hidden, or pass allow"):
        masks.check(padding)
    with pytest.raises(ValueError, match=r"0: pass allow_empty_rows=True"):
        masks.check(masks.as_additive(padding))


def test_empty_rows_are_counted():
    mask = np.ones((2, 3, 4, 5), bool)
    mask[0, 2, 1] = mask[1, 0, 3] = False
    with pytest.raises(
        ValueError, match=r"hides all keys from 2 of 24 rows \(the first at \[0, 2, 1\]\)"
    ):
        masks.check(mask)


@pytest.mark.parametrize("seed", range(20))
def test_random_masks_are_fine(seed):
    random = np.random.default_rng(seed)
    for density in (0.1, 0.5, 0.9):
        mask = random.random((2, 7, 9)) < density
        assert masks.check(mask, allow_empty_rows=True) is mask


INVERTED = {
    "a triangle": (triangle(5, above=1), "j > i "),
    "two queries": (triangle(2, above=1), "j > i "),
    "heads and batch": (np.tile(triangle(5, above=1), (2, 3, 1, 1)), "j > i "),
    "broadcast": (np.broadcast_to(triangle(5, above=1), (10**9, 64, 5, 5)), "j > i "),
    "more keys": (triangle(3, 9, above=1), "j > i "),
    "after cached keys": (triangle(3, 9, above=7), "j > i + 6 "),
    "more queries, last aligned": (triangle(5, 3, above=-1), "j > i - 2 "),
    "not causal": (~masks.causal(4, 10, query_offset=6), "j > i + 6 "),
    "and right padding": (
        ~(masks.causal(5) & masks.padding([5, 4, 1, 0], 5)),
        "j > i ",
    ),
    "and left padding": (~(masks.causal(5) & masks.padding([2, 4], 5, side="left")), "j > i "),
}


@pytest.mark.parametrize("allow_empty_rows", [False, True])
@pytest.mark.parametrize("name", INVERTED)
def test_inverted(name, allow_empty_rows):
    mask, diagonal = INVERTED[name]
    with pytest.raises(ValueError, match=r"^mask looks inverted.*pass ~mask$") as raised:
        masks.check(mask, allow_empty_rows=allow_empty_rows)
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
        (triangle(5), "j >= i "),
        (triangle(3), "j >= i "),
        (triangle(4, 9, above=0), "j >= i "),
        (triangle(4, 9, above=5), "j >= i + 5 "),
        (masks.window(4, window=(0, None)), "j >= i "),
        (np.where(triangle(5), 0, -INF), "j >= i "),
    ],
)
def test_turned_round(mask, diagonal):
    with pytest.raises(
        ValueError, match=r"^mask looks mirrored.*np\.tril in place of np\.triu"
    ) as raised:
        masks.check(mask)
    assert diagonal in str(raised.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.tri(4), "zeros and ones"),
        (np.triu(np.ones((4, 4)), 1), "zeros and ones"),
        (np.ones((1, 4)), "zeros and ones"),
        (np.array([0.0, 1.0]), "zeros and ones"),
        (np.array([[0, NAN], [0, 0]]), r"NaN, for example from 0 \* -inf"),
        (np.array([[0, INF], [0, 0]]), r"\+inf, for which softmax"),
        (np.array([[0.0, -1e4], [-1e4, -1e4]]), r"1 of 2 rows \(the first at \[1\]\) with finite"),
        (np.array([[0.0, 0.0], [-INF, -2e4]]), r"1 of 2 rows \(the first at \[1\]\) with finite"),
        (np.full((2, 2), -65504.0), "2 of 2 rows"),
    ],
)
def test_numbers_that_do_not_do_what_they_seem_to(mask, words, dtype):
    for allow_empty_rows in (False, True):
        with pytest.raises(ValueError, match=words):
            masks.check(mask.astype(dtype), allow_empty_rows=allow_empty_rows)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.tri(3, dtype=int), r"mask must be bool .* or float .*, got int64; use mask\.astype"),
        ([[1, 0], [1, 1]], "mask must be bool"),
        (None, "mask must be an array of bool or float, got None"),
        (np.tri(3, dtype=complex), "got complex128"),
    ],
)
def test_wrong_types(mask, words):
    with pytest.raises(TypeError, match=words):
        masks.check(mask)


def test_the_mask_is_not_touched():
    mask = np.where(masks.causal(5), 0.0, -INF)
    mask.setflags(write=False)
    assert masks.check(mask) is mask
