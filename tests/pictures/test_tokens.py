"""Test the argument `tokens` of everything that shows attention."""

import re

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


@pytest.mark.parametrize(
    ("tokens", "sizes", "error", "message"),
    [
        (WORDS, (4, 5), ValueError, "tokens must have one str for each key, 5, got 4"),
        (WORDS, (2, 4), ValueError, "one sequence for 2 queries and 4 keys"),
        (WORDS, (2, 4, 3), ValueError, "one sequence for 4 keys and queries at positions 3 to 4"),
        (WORDS, (2, 4, -1), ValueError, "queries at positions -1 to 0"),
        ((WORDS, WORDS), (3, 4), ValueError, "tokens[0] must have one str for each query, 3, got"),
        ((WORDS, WORDS), (4, 3), ValueError, "tokens[1] must have one str for each key, 3, got 4"),
        ("abcd", (4, 4), TypeError, "got a str: split it into tokens first"),
        (b"abcd", (4, 4), TypeError, "got a bytes: split it"),
        (("ab", WORDS), (2, 4), TypeError, "tokens[1] must be a str, got list"),
        ([1, 2], (2, 2), TypeError, "tokens[0] must be a str, got the int 1: pass the text of"),
        (np.arange(2), (2, 2), TypeError, "tokens[0] must be a str, got the int64 0"),
        (["a", b"b"], (2, 2), TypeError, "tokens[1] must be a str, got bytes: decode each token"),
        (["a", None], (2, 2), TypeError, "tokens[1] must be a str, got NoneType"),
        (["a", True], (2, 2), TypeError, "tokens[1] must be a str, got bool"),
        ({"a": 1, "b": 2}, (2, 2), TypeError, "got dict"),
        ({"a", "b"}, (2, 2), TypeError, "got set"),
        (7, (2, 2), TypeError, "tokens must be a sequence of str, or a pair (query tokens, key"),
        (np.array("a"), (1, 1), TypeError, "got ndarray"),
        (np.array([WORDS, WORDS, WORDS]), (3, 4), TypeError, "tokens[0] must be a str, got ndarr"),
        ((None, [1]), (1, 1), TypeError, "tokens[1][0] must be a str, got the int 1"),
    ],
)
def test_what_is_refused(tokens, sizes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        tokens_of_axes(tokens, *sizes)
