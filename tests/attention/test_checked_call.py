"""Test a checked call and its parts: batch entries, heads, chunks of queries and keys."""

from itertools import product

import numpy as np
import pytest

import regard
from regard._arguments.positions import Positions
from regard._attention.check import check_call

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, DIM = (2, 3), 4, 2, 70, 150, 8
RANDOM = np.random.default_rng(31)
SEEN = RANDOM.random((3, 1, Q_LEN, KV_LEN)) < 0.7
BIAS = RANDOM.standard_normal((HEADS, 1, KV_LEN))
SLOPES = RANDOM.random((3, HEADS))
DROPOUT = {"dropout_p": 0.3, "dropout_seed": 5}
CALLS = {
    "plain": (None, {}),
    "causal": (None, {"is_causal": True, "query_offset": [[60], [80]]}),
    "end": (None, {"query_offset": "end", "key_lengths": [150, 90, 0], "window": (40, None)}),
    "padding": (SEEN, {"left_padding": [[3], [50]], "softcap": 3.0, "scale": 0.2}),
    "bias": (BIAS, {"sinks": RANDOM.standard_normal(HEADS), "alibi_slopes": SLOPES[0]}),
    "pair": ((SEEN[0], BIAS), {"alibi_slopes": SLOPES, "query_offset": -20, "window": (30, 9)}),
    "dropout": (None, {"is_causal": True, "query_offset": 80, **DROPOUT}),
    "moved dropout": (BIAS, {**DROPOUT, "dropout_origin": (7, 3, 2**34 - 5)}),
}
# Query and key with fewer axes are broadcast.
SHAPES = {
    "full": ((*BATCH, HEADS, Q_LEN, DIM), (*BATCH, KV_HEADS, KV_LEN, DIM)),
    "broadcast": ((BATCH[0], 1, HEADS, Q_LEN, DIM), (BATCH[1], KV_HEADS, KV_LEN, DIM)),
}


def call_of(name, shapes):
    mask, options = CALLS[name]
    query, key, value = (
        np.random.default_rng(i).standard_normal(SHAPES[shapes][min(i, 1)], np.float32)
        for i in range(3)
    )
    return check_call(query, key, value, mask, options)


def attend(call):
    return regard.scaled_dot_product_attention(*call.arguments(), **call.options, return_lse=True)


@pytest.mark.parametrize(("name", "shapes"), [*product(CALLS, SHAPES)])
def test_parts_have_the_bits_of_the_whole(name, shapes, target):
    call = call_of(name, shapes)
    output, lse = attend(call)
    assert lse.shape == call.rows
    assert output.shape == (*call.rows, call.sizes.value_dim)
    for place, entry in call.entries():
        assert entry.sizes.batch == ()
        for whole, part in zip((output, lse), attend(entry), strict=True):
            assert np.array_equal(part, whole[place], equal_nan=True)
        for number in range(HEADS):
            head = entry.head(number)
            assert head.rows == (Q_LEN,)
            for whole, part in zip((output, lse), attend(head), strict=True):
                assert np.array_equal(part, whole[(*place, number)], equal_nan=True)
    some = call.part(entries=(slice(1, 2), slice(0, 2)), heads=slice(2, 4), queries=slice(5, 33))
    assert some.sizes[:4] == ((1, 2), 2, 1, 28)
    for whole, part in zip((output, lse), attend(some), strict=True):
        assert np.array_equal(part, whole[1:2, :2, 2:4, 5:33], equal_nan=True)


@pytest.mark.parametrize("name", [name for name in CALLS if "sinks" not in CALLS[name][1]])
def test_chunks_of_keys_merge_to_the_whole(name, target):
    call = call_of(name, "full")
    output, lse = attend(call)
    spans = [slice(0, 40), slice(40, 41), slice(41, 41), slice(41, 150)]
    states = [attend(call.chunk(slice(None), keys)) for keys in spans]
    merged, merged_lse = regard.merge_attention_states(*zip(*states, strict=True))
    assert np.allclose(merged, output, rtol=1e-4, atol=1e-5)
    assert np.allclose(merged_lse, lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4)])
def test_without_a_heads_axis(shape):
    x = np.ones(shape)
    call = check_call(x, x, None, None, {"is_causal": True})
    assert call.has_heads == (len(shape) == 3)
    assert call.rows == shape[:-1]
    assert call.with_heads().rows == (1, 5)
    assert call.value.shape[-1] == call.sizes.value_dim == 0
    assert call.result_type == call.arithmetic == "float64"


def test_errors_are_those_of_the_call():
    x = np.ones((2, 3, 4))
    for mask, options, message in (
        (None, {"key_lengths": 4}, "key_lengths must be from 0 to 3, got 4"),
        (np.ones((3, 3), int), {}, "mask must be bool"),
        (np.ones((4, 3), bool), {}, "mask must broadcast to"),
        (None, {"window": 3}, "window must be a pair"),
        (None, {"sinks": [1.0]}, "sinks must have one number for every query head"),
    ):
        for call in (check_call, regard.scaled_dot_product_attention):
            arguments = (x, x, x, mask, options) if call is check_call else (x, x, x, mask)
            with pytest.raises((TypeError, ValueError), match=message):
                call(*arguments, **({} if call is check_call else options))


LEAST, MOST = -(2**63), 2**63 - 1
OFFSETS = (LEAST, LEAST + 6, -(2**61) - 3, -9, 0, 4, 2**61 + 3, MOST - 6, MOST)
SIDES = (None, 0, 3, 2**62 + 1, MOST - 12, MOST)


def sees(positions, i, j):
    """Return whether query i sees key j, in integers of any size."""
    p = i + int(positions.query_offset)
    begin, end = map(int, positions.existing())
    return (
        begin <= j < end
        and (positions.left is None or j >= p - positions.left)
        and (positions.right is None or j <= p + positions.right)
    )


@pytest.mark.parametrize("offset", OFFSETS)
def test_positions_of_a_chunk(offset):
    """The sums may exceed 64 bits."""
    for left, right, limits in product(SIDES, SIDES, ({}, {"key_lengths": 7, "left_padding": 2})):
        options = {"query_offset": offset, "window": (left, right), **limits}
        whole = Positions.of(options, 6, 9)
        for (first, last), (start, stop) in product(((0, 6), (2, 5)), ((0, 9), (4, 8), (3, 3))):
            chunk = whole.chunk((first, last), (start, stop))
            assert LEAST <= int(chunk.query_offset) <= MOST
            seen = [[sees(whole, i, j) for j in range(start, stop)] for i in range(first, last)]
            found = [[sees(chunk, i, j) for j in range(stop - start)] for i in range(last - first)]
            assert found == seen, (options, first, start)
            again = Positions.of(chunk.options(), last - first, stop - start)
            assert again.options() == chunk.options()
            columns = [j for row in seen for j, is_seen in enumerate(row) if is_seen]
            begin, end = chunk.visible()
            assert (begin < end) == bool(columns)
            if columns:
                assert begin <= min(columns)
                assert end > max(columns)


@pytest.mark.parametrize("offset", [-(2**62), -(2**61) - 2**60, 2**61 + 2**60, 2**63 - 99])
def test_chunks_far_from_all_queries_drop_the_same_weights(offset):
    """Offsets within 64 bits are moved exactly, since dropout counts from them."""
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((2, n, 4)) for n in (3, 20, 20))
    options = {"query_offset": offset, "window": (2**63 - 1, 2**63 - 1)}
    options |= {"dropout_p": 0.5, "dropout_seed": 3}
    wanted = regard.scaled_dot_product_attention(query, key, value, **options)
    chunks = [(key[:, start : start + 5], value[:, start : start + 5]) for start in range(0, 20, 5)]
    streamed = regard.attend_stream(query, chunks, **options)
    np.testing.assert_allclose(streamed, wanted, rtol=0, atol=1e-14)
