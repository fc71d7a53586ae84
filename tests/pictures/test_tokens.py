"""Test the argument `tokens` of everything that shows attention."""

import numpy as np
import pytest

from regard._show.labels import tokens_of_axes

WORDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("tokens", "sizes", "query", "key"),
    [
        (None, (2, 3), None, None),
        (WORDS, (4, 4), WORDS, WORDS),
        (tuple(WORDS), (4, 4), WORDS, WORDS),
        ((word for word in WORDS), (4, 4), WORDS, WORDS),
        (np.array(WORDS), (4, 4), WORDS, WORDS),
        (np.array(WORDS, object), (4, 4), WORDS, WORDS),
        (WORDS, (4, 4, 0), WORDS, WORDS),
        (WORDS, (2, 4, 2), ["c", "d"], WORDS),
        (WORDS, (1, 4, 0), ["a"], WORDS),
        (WORDS, (0, 4, 9), [], WORDS),
        ([], (0, 0), [], []),
        ((["x"], WORDS), (1, 4), ["x"], WORDS),
        ([["x"], WORDS], (1, 4), ["x"], WORDS),
        ((None, WORDS), (1, 4), None, WORDS),
        ((["x"], None), (1, 4), ["x"], None),
        ((None, None), (1, 4), None, None),
        (("x", "y"), (2, 2), ["x", "y"], ["x", "y"]),
        ((WORDS, np.array(["x", "y"])), (4, 2, 3), WORDS, ["x", "y"]),
        (["", "\n", "<b>", "\N{RIGHT-TO-LEFT MARK}"], (4, 4), *[["", "\n", "<b>", "\u200f"]] * 2),
    ],
)
def test_tokens(tokens, sizes, query, key):
    found = tokens_of_axes(tokens, *sizes)
    assert found == (query, key)
    for texts in found:
        assert all(type(text) is str for text in texts or [])
