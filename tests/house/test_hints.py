"""Test hints about common mistakes: float masks of zeros and ones, arrays in another layout."""

import numpy as np
import pytest

import regard
from regard._arguments.hints import holds_zero_one, layout_hint

CAUSAL = np.tril(np.ones((200, 200), np.float32))
LAST = CAUSAL.copy()
LAST[-1, -1] = 0.5
MASKS = [
    (CAUSAL, True),
    (CAUSAL.astype(np.float64)[::-1, ::2], True),
    (np.broadcast_to(CAUSAL, (3, 200, 200)), True),
    (np.array([0.0, 1.0]), True),
    (np.eye(70, dtype=np.float32), True),
    (LAST, False),
    (np.zeros((200, 200), np.float32), False),
    (np.ones((200, 200), np.float32), False),
    (np.array(1.0), False),
    (np.zeros(0), False),
    (np.where(CAUSAL > 0, 0, -np.inf), False),
    (np.array([0.0, 1.0, np.nan]), False),
    (np.array([0.0, 1.0, -1.0]), False),
]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_read_as_an_array():
    x = np.ones((2, 2, 4))
    bias = [[0.0, -1.0], [2.0, 3.0]]
    attend = regard.scaled_dot_product_attention
    assert np.array_equal(attend(x, x, x, np.matrix(bias)), attend(x, x, x, np.array(bias)))


@pytest.mark.parametrize(("mask", "is_zero_one"), MASKS)
def test_masks_of_zeros_and_ones(mask, is_zero_one):
    assert holds_zero_one(mask) is is_zero_one


@pytest.mark.parametrize(
    "call",
    [
        "regard.scaled_dot_product_attention(x, x, x, mask)",
        "regard.scaled_dot_product_attention(x, x, x, mask, rows=slice(1), return_weights=True)",
        "regard.scaled_dot_product_attention_backward(x, x, x, x, x, x[..., 0], mask)",
        "regard.attend_stream(x, [(x, x)], mask)",
        "layer(x[0], mask=mask)",
        "single(x[0], mask=mask)",
    ],
)
def test_the_warning_comes_once_and_from_the_call(call, run_python):
    script = f"""
    import warnings
    import numpy as np
    import regard

    x = np.ones((1, 2, 4))
    layer, single = regard.MultiHeadAttention(4, 2, rng=0), regard.SelfAttention(4, 4, rng=0)
    warnings.simplefilter("always")
    for mask in (np.zeros((2, 2)), np.eye(2), 1 - np.eye(2)):
        {call}  # this line
    """
    done = run_python(script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning") == 1
    assert "<string>:10: UserWarning: mask contains only zeros and ones in float64" in done.stderr
    assert "pass mask.astype(bool) if 1 means may attend" in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "regard.scaled_dot_product_attention(x, x, x, mask)",
        "regard.scaled_dot_product_attention_ragged(x, x, x, [0, 3], [0, 3], mask[:, None])",
        "cache.attend(x.swapaxes(0, 1), mask)",
        "regard.apply_mask(np.zeros((3, 3)), mask)",
    ],
)
def test_calls_warn(call, run_python):
    script = f"""
    import numpy as np, regard
    x, mask = np.ones((3, 3, 4)), np.tril(np.ones((3, 3)))
    cache = regard.KVCache(1, 3, 4)
    cache.append(x, x)
    {call}
    """
    done = run_python(script)
    assert done.returncode == 0
    assert "<string>:6: UserWarning: mask contains only zeros and ones in float64" in done.stderr


SHAPES = [
    # (batch, length, heads, dim): lengths do not work as numbers of heads, or are too large for it
    ((2, 100, 8, 64), (2, 120, 8, 64), True),
    ((2, 100, 8, 64), (2, 120, 2, 64), True),
    ((1, 512, 32, 128), (1, 512, 8, 128), True),
    ((1, 5, 3, 256, 4, 32), (1, 5, 1, 256, 4, 32), True),
    ((1, 1, 32, 128), (1, 512, 8, 128), True),
    # (batch, heads, length, dim), refused for other reasons
    ((2, 8, 100, 64), (2, 8, 120, 48), False),
    ((2, 8, 100, 64), (2, 3, 120, 64), False),
    ((1, 32, 1, 128), (1, 8, 4096, 128), False),
    ((1, 32, 1, 128), (1, 32, 1, 64), False),
    ((1, 30, 1, 128), (1, 8, 1, 128), False),
    ((1, 32, 2, 128), (1, 32, 2, 64), False),
    ((1, 128, 16, 128), (1, 128, 16, 64), False),
    ((1, 8, 0, 64), (1, 3, 2, 64), False),
    ((1, 8, 4, 64), (1, 0, 2, 64), False),
    ((100, 8, 64), (120, 8, 64), False),
    ((64,), (), False),
]


@pytest.mark.parametrize(("query", "key", "is_given"), SHAPES)
def test_hint_about_the_layout(query, key, is_given):
    hint = layout_hint(query, key)
    assert (
        hint.startswith("; arrays are (batch, heads, length, dim) here") if is_given else not hint
    )


HEADS = np.ones((2, 4, 3, 8), np.float32)
PAGES = np.ones((3, 16, 4, 8), np.float32)
COLUMN = np.array([[3], [2]])


def cache():
    made = regard.KVCache(2, 4, 8)
    made.append(HEADS, HEADS)
    return made


PER_ENTRY = {
    "attention": lambda **options: regard.scaled_dot_product_attention(*(HEADS,) * 3, **options),
    "explain": lambda **options: regard.explain(*(HEADS,) * 3, **options),
    "backward": lambda **options: regard.scaled_dot_product_attention_backward(
        *(HEADS,) * 5, HEADS[..., 0], **options
    ),
    "jvp": lambda **options: regard.scaled_dot_product_attention_jvp(*(HEADS,) * 6, **options),
    "summary": lambda **options: regard.summarize_attention(HEADS, HEADS, **options),
    "map": lambda **options: regard.attention_map(HEADS, HEADS, **options),
    "layer": lambda **options: regard.MultiHeadAttention(8, 2, rng=0)(HEADS[:, 0], **options),
}
COLUMNS = [
    *((lambda call=call, name=name: call(**{name: COLUMN}), name)
      for call in PER_ENTRY.values()
      for name in ("key_lengths", "left_padding", "query_offset")),
    (lambda: cache().append(HEADS, HEADS, lengths=COLUMN), "lengths"),
    (lambda: cache().truncate(COLUMN), "length"),
    (lambda: regard.paged_attention(HEADS, PAGES, PAGES, [[0], [1]], COLUMN), "lengths"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "name"), COLUMNS)
def test_numbers_in_a_column_get_a_hint(call, name):
    with pytest.raises(ValueError, match=rf"got shape \(2, 1\); pass {name}\[:, 0\]$"):
        call()


def test_numbers_of_another_shape_get_no_such_hint():
    for shape in ((1, 3), (3, 1), (3,), (2, 2), (2, 1, 1)):
        with pytest.raises(ValueError, match=r"got shape \([\d, ]*\)$"):
            PER_ENTRY["attention"](key_lengths=np.ones(shape, int))


@pytest.mark.parametrize("call", [regard.scaled_dot_product_attention, regard.explain])
def test_calls_give_the_hint_about_the_layout(call):
    lengths_first = np.zeros((2, 10, 8, 16)), np.zeros((2, 20, 2, 16))
    with pytest.raises(ValueError, match=r"pass query\.swapaxes\(-3, -2\)"):
        call(lengths_first[0], lengths_first[1], lengths_first[1])
