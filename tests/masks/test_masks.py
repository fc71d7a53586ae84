"""Test masks as arrays, and attention with them."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard import masks, positional

FAR = 2**63 - 1


def by_definition(q_len, kv_len, offset):
    rows = [[j <= i + int(offset) for j in range(kv_len)] for i in range(q_len)]
    return np.array(rows, bool).reshape(q_len, kv_len)


@pytest.mark.parametrize(
    "offset",
    [0, 1, 4, -1, -3, 100, -100, FAR, -FAR - 1, 2**64 - 1, 10**30, -(10**30), np.int8(2)],
)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (3, 3), (2, 5), (5, 2), (0, 3), (3, 0)])
def test_causal(q_len, kv_len, offset):
    actual = masks.causal(q_len, kv_len, query_offset=offset)
    assert_same_bits(actual, by_definition(q_len, kv_len, offset))


def test_causal_is_square_by_default():
    assert_same_bits(masks.causal(5), np.tri(5, dtype=bool))
    assert_same_bits(masks.causal(np.uint8(5)), np.tri(5, dtype=bool))


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3],
        [[0, 3, -2], [7, 1, 100]],
        np.array([5, 127], np.int8),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([FAR, -FAR - 1]),
        np.zeros((2, 0), int),
    ],
)
def test_causal_with_an_offset_per_batch_entry(offsets):
    actual = masks.causal(3, 300, query_offset=offsets)
    offsets = np.asarray(offsets)
    assert actual.shape == (*offsets.shape, 1, 3, 300)
    assert actual.dtype == np.bool_
    for index in np.ndindex(offsets.shape):
        assert_same_bits(actual[index][0], by_definition(3, 300, offsets[index]))


def test_causal_with_a_0d_offset_is_2d():
    assert_same_bits(masks.causal(3, 5, query_offset=np.array(2)), by_definition(3, 5, 2))


OFFSETS = [0, 1, 4, -1, -3, 100, -100, FAR, -FAR - 1, 10**30, -(10**30)]
WINDOWS = [(0, 0), (1, 0), (0, 2), (2, 1), (None, 0), (3, None), (None, None), (np.int8(1), 9)]
WINDOWS += [(FAR, FAR), (10**30, 0), (0, 10**30), (10**30 + 1, 1)]


def in_window(q_len, kv_len, window, offset):
    left, right = window
    rows = [
        [
            (left is None or j >= i + int(offset) - int(left))
            and (right is None or j <= i + int(offset) + int(right))
            for j in range(kv_len)
        ]
        for i in range(q_len)
    ]
    return np.array(rows, bool).reshape(q_len, kv_len)


@pytest.mark.parametrize("pair", WINDOWS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (4, 4), (2, 7), (6, 2), (0, 3), (3, 0)])
def test_window(q_len, kv_len, pair):
    for offset in OFFSETS:
        actual = masks.window(q_len, kv_len, window=pair, query_offset=offset)
        assert_same_bits(actual, in_window(q_len, kv_len, pair, offset))


@pytest.mark.parametrize("pair", WINDOWS)
@pytest.mark.parametrize("offsets", [[0, 3], [[0, 3, -2], [7, 1, 100]], np.zeros((2, 0), int)])
def test_window_with_an_offset_per_batch_entry(pair, offsets):
    actual = masks.window(3, 9, window=pair, query_offset=offsets)
    offsets = np.asarray(offsets)
    assert actual.shape == (*offsets.shape, 1, 3, 9)
    for index in np.ndindex(offsets.shape):
        assert_same_bits(actual[index][0], in_window(3, 9, pair, offsets[index]))


@pytest.mark.parametrize("offset", [0, 5, -2, [3, 0, -1]])
def test_windows_of_masks_are_one_another(offset):
    def window(*pair):
        return masks.window(7, 9, window=pair, query_offset=offset)

    causal = masks.causal(7, 9, query_offset=offset)
    assert_same_bits(window(None, 0), causal)
    assert_same_bits(window(2, None) & causal, window(2, 0))
    assert_same_bits(window(2, 0) | window(0, 3), window(2, 3))
    assert_same_bits(~window(None, 0), window(None, None) & ~causal)
    assert_same_bits(masks.window(7, window=[2, 1]), masks.window(7, 7, window=(2, 1)))


@pytest.mark.parametrize("lengths", [0, 3, 7, np.int8(7), [3], [0, 7, 2], [[1, 2], [3, 4]]])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(lengths, side):
    actual = masks.padding(lengths, 7, side=side)
    lengths = np.asarray(lengths)
    assert actual.dtype == np.bool_
    assert actual.shape == ((*lengths.shape, 1, 1, 7) if lengths.ndim else (1, 7))
    for index in np.ndindex(lengths.shape):
        real = [True] * lengths[index] + [False] * (7 - lengths[index])
        wanted = real if side == "right" else real[::-1]
        assert np.squeeze(actual[index]).tolist() == wanted


def test_padding_lies_right_and_may_be_everything():
    assert_same_bits(masks.padding([2, 0], 3), masks.padding([2, 0], 3, side="right"))
    assert masks.padding(0, 0).shape == (1, 0)
    assert masks.padding(np.zeros((0,), int), 4).shape == (0, 1, 1, 4)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        ((5,), None),
        ((5,), (7,)),
        ((2, 5), None),
        ((2, 5), (2, 7)),
        ((2, 5), (7,)),
        ((5,), (2, 7)),
        ((3, 1, 5), (2, 7)),
        ((0, 5), None),
        ((2, 0), (2, 7)),
    ],
)
def test_segments(queries, keys):
    random = np.random.default_rng(0)
    queries = random.integers(-1, 3, queries)
    given = None if keys is None else random.integers(-1, 3, keys).astype(np.int16)
    actual = masks.segments(queries, given)
    keys = queries if given is None else given
    batch = np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    heads = (1,) if batch else ()
    assert actual.dtype == np.bool_
    assert actual.shape == (*batch, *heads, queries.shape[-1], keys.shape[-1])
    queries = np.broadcast_to(queries, (*batch, queries.shape[-1]))
    keys = np.broadcast_to(keys, (*batch, keys.shape[-1]))
    for index in np.ndindex(*batch, queries.shape[-1], keys.shape[-1]):
        *entry, i, j = index
        same = queries[*entry, i] == keys[*entry, j]
        assert actual[*entry, *(0 for _ in heads), i, j] == same


def test_segments_of_any_integers():
    wide = masks.segments(np.array([2**64 - 1, 0], np.uint64), np.array([-1, 0, 2**62]))
    assert_same_bits(wide, np.array([[False, False, False], [False, True, False]]))


def test_packed_documents_are_those_documents_alone(dtype):
    random = np.random.default_rng(1)
    lengths = [3, 1, 5]
    ids = np.repeat([7, -2, 7000], lengths)
    query, key, value = (random.standard_normal((2, 9, 4)).astype(dtype) for _ in range(3))
    mask = masks.segments(ids) & masks.causal(9)
    packed = regard.scaled_dot_product_attention(query, key, value, mask)
    start = 0
    for length in lengths:
        own = np.s_[:, start : start + length]
        alone = regard.scaled_dot_product_attention(
            query[own], key[own], value[own], is_causal=True
        )
        np.testing.assert_allclose(packed[own], alone, rtol=0, atol=8 * np.finfo(dtype).eps)
        start += length


@pytest.mark.parametrize("offset", [0, 2, -1, [3, 0], [[1], [5]]])
@pytest.mark.parametrize("lengths", [0, 2, 6, [1, 4], [[0], [6]]])
@pytest.mark.parametrize("q_len", [0, 1, 6])
def test_prefix(q_len, lengths, offset):
    actual = masks.prefix(q_len, 6, prefix_lengths=lengths, query_offset=offset).to_dense()
    batch = np.broadcast_shapes(np.shape(lengths), np.shape(offset))
    assert actual.dtype == np.bool_
    assert actual.shape == (*batch, *((1,) if batch else ()), q_len, 6)
    lengths, offset = np.broadcast_to(lengths, batch), np.broadcast_to(offset, batch)
    for index in np.ndindex(batch):
        wanted = by_definition(q_len, 6, offset[index]) | (np.arange(6) < lengths[index])
        assert_same_bits(actual[index][0] if batch else actual, wanted)


def test_prefix_is_square_by_default():
    assert_same_bits(masks.prefix(4, prefix_lengths=0).to_dense(), masks.causal(4))
    assert_same_bits(masks.prefix(4, prefix_lengths=4).to_dense(), np.ones((4, 4), bool))


@pytest.mark.parametrize("offset", [0, 2, -1, [3, 1]])
def test_causal_mask_is_is_causal(offset, dtype, target):
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((2, 2, n, 4)).astype(dtype) for n in (3, 5, 5))
    mask = masks.causal(3, 5, query_offset=offset)
    wanted = regard.scaled_dot_product_attention(
        query, key, value, is_causal=True, query_offset=offset, return_weights=True
    )
    for form in (mask, masks.as_additive(mask), masks.as_additive(mask, np.float64)):
        actual = regard.scaled_dot_product_attention(query, key, value, form, return_weights=True)
        for a, w in zip(actual, wanted, strict=True):
            np.testing.assert_allclose(a, w, rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 1, 3, 5)])
def test_as_additive(shape, dtype):
    mask = np.random.default_rng(1).random(shape) < 0.5
    before = mask.copy()
    actual = masks.as_additive(mask, dtype)
    assert_same_bits(actual, np.where(mask, 0, -np.inf).astype(dtype))
    assert_same_bits(mask, before)


def test_as_additive_in_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    wanted = np.array([0, -np.inf], bfloat16)
    assert_same_bits(masks.as_additive([True, False], bfloat16), wanted)


def test_as_additive_of_lists_is_float32():
    wanted = np.array([0, -np.inf], np.float32)
    assert_same_bits(masks.as_additive([True, False]), wanted)


def test_as_additive_is_the_notebooks_triangle():
    with np.errstate(divide="ignore"):
        assert_same_bits(masks.as_additive(masks.causal(4), np.float64), np.log(np.tri(4)))


@pytest.mark.parametrize("window", [[1, 0], np.array([1, 0]), np.array([1, 0], np.uint8)])
def test_a_window_may_be_what_the_call_takes(window):
    wanted = masks.window(5, window=(1, 0))
    assert_same_bits(masks.window(5, window=window), wanted)
    x = np.random.default_rng(0).standard_normal((5, 4))
    assert_same_bits(
        regard.scaled_dot_product_attention(x, x, x, window=window),
        regard.scaled_dot_product_attention(x, x, x, wanted),
    )


def test_an_empty_list_is_an_empty_batch():
    assert masks.causal(2, 3, query_offset=[]).shape == (0, 1, 2, 3)
    assert masks.window(2, 3, window=(1, 0), query_offset=()).shape == (0, 1, 2, 3)
    assert masks.padding([], 3).shape == (0, 1, 1, 3)
    assert masks.segments([]).shape == (0, 0)
    with pytest.raises(TypeError, match=r"^key_lengths must be .* got float64"):
        masks.padding(np.array([]), 3)


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 5), (5, 3), (4, 4), (0, 3), (3, 0)])
def test_the_offset_end_aligns_the_last_query_with_the_last_key(q_len, kv_len):
    offset = kv_len - q_len
    for mask, options in (
        (masks.causal, {}),
        (masks.window, {"window": (1, 2)}),
        (lambda *given, **extra: masks.prefix(*given, **extra).to_dense(), {"prefix_lengths": 0}),
    ):
        assert_same_bits(
            mask(q_len, kv_len, query_offset="end", **options),
            mask(q_len, kv_len, query_offset=offset, **options),
        )
    assert_same_bits(
        positional.t5_buckets(q_len, kv_len, query_offset="end"),
        positional.t5_buckets(q_len, kv_len, query_offset=offset),
    )
