"""A checked call and its parts: batch entries, heads, chunks of queries and keys."""

from itertools import product

import hypothesis
import pytest
from hypothesis import strategies as st

import regard
from drawn_problems import TARGETS, examples, on_target, problems
from reference import assert_same_bits
from regard._arguments.positions import Positions
from regard._attention.check import check_call


def attend(call):
    return regard.scaled_dot_product_attention(*call.arguments(), **call.options, return_lse=True)


def checked(problem):
    options = dict(problem.options)
    return check_call(*problem.arrays, options.pop("mask", None), options)


def some_of(draw, size, step=1):
    start = draw(st.integers(0, size // step - 1)) * step
    return slice(start, draw(st.integers(start // step + 1, size // step)) * step)


@hypothesis.given(problem=problems(), target=TARGETS, data=st.data())
@examples(200)
def test_parts_have_the_bits_of_the_whole(problem, target, data):
    """Selected entries are consecutive if there is dropout, which counts them."""
    call = checked(problem)
    with on_target(target):
        whole = attend(call)
        assert whole[1].shape == call.rows
        assert whole[0].shape == (*call.rows, call.sizes.value_dim)
        for place, entry in call.entries():
            assert entry.sizes.batch == ()
            assert_same_bits(attend(entry), tuple(x[place] for x in whole))
            number = data.draw(st.integers(0, call.sizes.heads - 1))
            head = entry.head(number)
            assert head.rows == (call.sizes.q_len,)
            assert_same_bits(attend(head), tuple(x[(*place, number)] for x in whole))
        places = [some_of(data.draw, n) for n in call.sizes.batch]
        if "dropout_p" in problem.options:
            places[1:] = [slice(None)] * len(places[1:])
        heads = some_of(data.draw, call.sizes.heads, call.sizes.group)
        if data.draw(st.booleans()):  # a part of one group
            heads = slice(heads.start, data.draw(st.integers(1, call.sizes.group)) + heads.start)
        queries = some_of(data.draw, call.sizes.q_len)
        some = call.part(entries=tuple(places), heads=heads, queries=queries)
        assert_same_bits(attend(some), tuple(x[(*places, heads, queries)] for x in whole))


LEAST, MOST = -(2**63), 2**63 - 1
OFFSETS = (LEAST, LEAST + 6, -(2**61) - 3, -9, 0, 4, 2**61 + 3, MOST - 6, MOST)
SIDES = (None, 0, 3, 2**62 + 1)


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
    """The sums may exceed 64 bits, but no window is that long."""
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
