"""Hints about common mistakes: float masks of zeros and ones, arrays in another layout."""

import numpy as np
import pytest

from regard._arguments.hints import holds_zero_one

CAUSAL = np.tril(np.ones((200, 200), np.float32))
LAST = CAUSAL.copy()
LAST[-1, -1] = 0.5


@pytest.mark.parametrize(
    ("mask", "is_zero_one"),
    [
        (CAUSAL.astype(np.float64)[::-1, ::2], True),
        (LAST, False),
        (np.ones((200, 200), np.float32), False),
        (np.array([0.0, 1.0, np.nan]), False),
    ],
)
def test_masks_of_zeros_and_ones(mask, is_zero_one):
    assert holds_zero_one(mask) is is_zero_one


@pytest.mark.parametrize(
    "call",
    [
        "regard.scaled_dot_product_attention(x, x, x, mask)",
        "cache.attend(x, mask)",
    ],
)
def test_the_warning_comes_once_and_from_the_call(call, run_python):
    done = run_python(
        f"""
        import warnings
        import numpy as np, regard
        x, cache = np.ones((1, 2, 4)), regard.KVCache(1, 1, 4)
        cache.append(x[:, None], x[:, None])
        x = x[:, None] if "cache" in {call!r} else x
        warnings.simplefilter("always")
        for mask in (np.zeros((2, 2)), np.eye(2), 1 - np.eye(2)):
            {call}  # this line
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning") == 1
    assert "<string>:9: UserWarning: mask contains only zeros and ones" in done.stderr
