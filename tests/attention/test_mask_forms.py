"""Sparse masks, masks of 16 bits and pairs of masks give, to the last bit, the results of one dense
mask, in every call that accepts a mask. tests/masks tests that masks are what they say."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_calls import calls, statistics
from drawn_masks import drawn_mask
from drawn_problems import TARGETS, examples, on_target
from element_types import type_named
from problem import drawn
from reference import assert_same_bits
from regard import masks

WITH_MASKS = (
    "attend",
    "weights",
    "int8",
    "gradients",
    "tangents",
    "statistics",
    "picture",
    "stream",
)
sdpa = regard.scaled_dot_product_attention


def under(problem, mask):
    """Return the problem with another mask, in addition to its float mask."""
    given = problem.options.get("mask")
    bias = given[1] if isinstance(given, tuple) else given
    if bias is not None and bias.dtype != bool:
        mask = mask, bias
    return dataclasses.replace(problem, options=problem.options | {"mask": mask})


def assert_same_under(mask, other, family, problem):
    """Compare everything except the gradients of the masks, which have their types."""
    options = problem.options
    found, wanted = (
        family(dataclasses.replace(problem, options=options | {"mask": each}))
        for each in (mask, other)
    )
    count = 3 if family.__name__ == "gradients" else None
    assert_same_bits(found[:count], wanted[:count])


@hypothesis.given(call=calls(WITH_MASKS), target=TARGETS, data=st.data())
@examples(150)
def test_sparse_masks_are_dense_masks(call, target, data):
    family, problem = call
    heads, q_len, kv_len = (*problem.query.shape[-3:-1], problem.key.shape[-2])
    count = data.draw(st.sampled_from([1, 1, heads]))
    drawn_ones = [drawn_mask(data.draw, q_len, kv_len) for _ in range(count)]
    sparse, dense = drawn_ones[0]
    if count > 1:
        sparse = masks.stack([mask for mask, _ in drawn_ones])
        dense = np.stack([mask for _, mask in drawn_ones])
        if problem.batch and data.draw(st.booleans()):
            sparse, dense = sparse[None], dense[None]
    with on_target(target):
        assert_same_bits(family(under(problem, sparse)), family(under(problem, dense)))


@hypothesis.given(call=calls(WITH_MASKS), target=TARGETS, data=st.data())
@examples(100)
def test_masks_of_16_bits_are_masks_of_32(call, target, data):
    family, problem = call
    half = type_named(data.draw(st.sampled_from(["float16", "bfloat16"])))
    shape = (*problem.grad_lse.shape[-2:], problem.key.shape[-2])
    kept = [slice(None) if data.draw(st.booleans()) else slice(1) for _ in shape]
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    numbers = random.choice([0.3, -1.7, 1e-7, -6e4, -np.inf], shape)[tuple(kept)].astype(half)
    wide = numbers.astype(np.float32)
    if data.draw(st.booleans()):
        wide, numbers = (np.ascontiguousarray(x[..., ::-1])[..., ::-1] for x in (wide, numbers))
    with on_target(target):
        assert_same_under(numbers, wide, family, problem)


@hypothesis.given(call=calls(WITH_MASKS), target=TARGETS, data=st.data())
@examples(100)
def test_a_pair_of_masks_is_their_merger(call, target, data):
    family, problem = call
    if family is statistics:
        return
    shape = (*problem.grad_lse.shape[-2:], problem.key.shape[-2])
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    shown, bias = random.random(shape) < 0.7, random.standard_normal(shape).astype(np.float32)
    axes = [slice(None) if data.draw(st.booleans()) else slice(1) for _ in range(6)]
    shown, bias = shown[tuple(axes[:3])], bias[tuple(axes[3:])]
    merged = np.where(shown, bias, np.float32(-np.inf))
    with on_target(target):
        assert_same_under((shown, bias), merged, family, problem)


def test_a_tuple_of_two_rows_is_an_array(target):
    query, key, value = (drawn((n, 8), np.float32, n) for n in (2, 3, 3))
    for rows in (((True, False, True), (True, True, False)), ((0.0, 1.0, -np.inf), (0.5, 0, 0))):
        wanted = sdpa(query, key, value, np.array(rows))
        assert_same_bits(sdpa(query, key, value, rows), wanted)


# Cases in which a chunk of keys has several pieces


@pytest.mark.parametrize("q_len", [2, 40])
def test_a_chunk_whose_first_block_is_hidden(q_len, dtype, target):
    """It follows the first keys, whose results wait to be merged."""
    far = masks.Ranges(0, 20, kv_len=1700) | masks.Ranges(np.full(q_len, 1660), 1700)
    arrays = [drawn((2, n, 16), dtype, n) for n in (q_len, 1700, 1700)]
    for extra in ({"return_lse": True}, {"return_weights": True, "threads": 2}):
        wanted = sdpa(*arrays, far.to_dense(), **extra)
        assert_same_bits(sdpa(*arrays, far, **extra), wanted)


def _gradients(arrays, mask, **options):
    asked = {"with_respect_to": ("query", "key", "value", *options.keys() & {"distance_bias"})}
    output, lse = sdpa(*arrays[1:], mask, **options, return_lse=True)
    given = arrays[0], *arrays[1:], output, lse, mask
    found = regard.scaled_dot_product_attention_backward(*given, **options, **asked)
    return tuple(x for x in found if x is not None)


def test_gradients_where_a_chunk_has_several_pieces(dtype, target):
    """Rows are long, so a piece consists of a few blocks of keys. A query sees one piece, or two
    pieces that are apart."""
    arrays = [drawn((1, length, 128), dtype, length) for length in (70, 70, 900, 900)]
    first = np.where(np.arange(70) < 40, 0, 430)
    sparse = masks.Ranges(first, first + 15, kv_len=900) | masks.Ranges(460, np.full(70, 470))
    dense = np.pad(sparse.to_dense(), [(0, 0), (0, 900 - sparse.shape[-1])])
    assert_same_bits(_gradients(arrays, sparse), _gradients(arrays, dense))


def test_gradients_of_queries_do_not_read_what_was_not_written(target):
    """A window and a mask leave a gap in each chunk: one piece is visible by position, the other by
    the mask. The distance table makes pieces short, and the first call fills the memory."""
    length, dtype = 1024, np.dtype(np.float32)
    arrays = [drawn((4, length, 32), dtype, seed) for seed in range(4)]
    sparse = masks.Ranges(0, 4, kv_len=length) | masks.documents(np.arange(length) // 320)
    options = {"window": (200, 0), "distance_bias": np.ones((4, 3), dtype)}
    results = []
    for mask in (sparse, sparse.to_dense()):
        _gradients([1e6 * arrays[0], *arrays[1:]], None, **options)
        results.append(_gradients(arrays, mask, **options))
    assert_same_bits(*results)


def test_a_rows_bits_depend_on_the_keys_that_it_sees(dtype, target):
    query, key, value = (drawn((1, n, 8), dtype, n) for n in (40, 500, 500))
    mask = masks.Ranges(0, np.full(40, 96), kv_len=500)
    assert_same_bits(sdpa(query, key, value, mask), sdpa(query, key[:, :96], value[:, :96]))


def test_hidden_blocks_take_no_time_and_no_memory():
    """Each of a million queries sees two of a million keys, in blocks that are far apart."""
    length = 1_000_000
    mask = masks.Ranges(np.arange(length), np.arange(length) + 2, kv_len=length)
    query = np.ones((length, 2), np.float32)
    value = np.arange(length, dtype=np.float32)[:, None]
    output = sdpa(query, query, value, mask)
    assert np.array_equal(output, np.minimum(value + np.float32(0.5), value[-1]))
