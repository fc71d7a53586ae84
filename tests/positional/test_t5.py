"""Test T5's buckets of distances."""

import math

import numpy as np
import pytest

import regard
from reference import assert_same_bits

t5_buckets = regard.positional.t5_buckets


def written_out(distance, buckets, max_distance):
    """Return the bucket of one distance in one direction, by the paper's logarithm, exact at the
    bounds."""
    exact = buckets // 2
    if distance < exact:
        return distance
    steps = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
    # A distance on a bound belongs to the upper bucket, but logarithms may fall short of it.
    near = round(steps)
    steps = near if abs(steps - near) < 1e-9 else steps
    return min(exact + math.floor(steps), buckets - 1)


@pytest.mark.parametrize("max_distance", [17, 128, 1000])
@pytest.mark.parametrize("num_buckets", [4, 30, 32])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_the_formula(bidirectional, num_buckets, max_distance):
    one_way = num_buckets // 2 if bidirectional else num_buckets
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets}
    actual = t5_buckets(1200, 1150, query_offset=-30, max_distance=max_distance, **options)
    assert actual.dtype == np.int64
    assert actual.shape == (1200, 1150)
    before = np.array([written_out(d, one_way, max_distance) for d in range(1200)])
    rows, keys = np.arange(1200)[:, None] - 30, np.arange(1150)
    if bidirectional:
        wanted = before[abs(keys - rows)] + one_way * (keys > rows)
    else:
        wanted = before[np.maximum(rows - keys, 0)]
    np.testing.assert_array_equal(actual, wanted)
    assert set(np.unique(actual)) <= set(range(num_buckets))


def test_offsets_per_batch_entry():
    offsets = np.array([[0, 3], [7, 200], [-2, 5]], np.int16)
    actual = t5_buckets(4, 9, query_offset=offsets)
    assert actual.shape == (3, 2, 4, 9)
    for index, offset in np.ndenumerate(offsets):
        assert_same_bits(actual[index], t5_buckets(4, 9, query_offset=offset))
    assert t5_buckets(0, 3).shape == (0, 3)
    assert t5_buckets(3, 0).shape == (3, 0)


@pytest.mark.parametrize("offset", [5, [5, 2]])
def test_the_recipes_for_a_mask_and_for_distances(offset, dtype):
    """T5 adds a learned number for each head and bucket to unscaled scores."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((32, 3)).astype(dtype)
    query = rng.standard_normal((2, 3, 4, 8)).astype(dtype)
    key, value = rng.standard_normal((2, 2, 3, 9, 8)).astype(dtype)
    buckets = t5_buckets(4, 9, query_offset=offset, bidirectional=False)
    mask = np.moveaxis(table[buckets], -1, -3)
    output = regard.scaled_dot_product_attention(
        query, key, value, mask, is_causal=True, query_offset=offset, scale=1.0
    )
    exact = np.empty(output.shape)
    for b, h, i in np.ndindex(2, 3, 4):
        position = i + (offset if np.ndim(offset) == 0 else offset[b])
        scores = [
            float(query[b, h, i].astype(float) @ key[b, h, j].astype(float))
            + float(table[written_out(position - j, 32, 128), h])
            for j in range(position + 1)
        ]
        weights = np.exp(np.array(scores) - max(scores))
        exact[b, h, i] = weights @ value[b, h, : position + 1].astype(float) / weights.sum()
    limit = {"rtol": 0, "atol": 64 * np.finfo(dtype).eps}
    np.testing.assert_allclose(output, exact, **limit)
    bias = regard.positional.t5_distance_bias(table, bidirectional=False)
    output = regard.scaled_dot_product_attention(
        query, key, value, is_causal=True, query_offset=offset, distance_bias=bias, scale=1.0
    )
    np.testing.assert_allclose(output, exact, **limit)


TABLES = [(32, 128, True), (4, 8, True), (2, 2, False), (3, 5, False), (64, 500, True)]


@pytest.mark.parametrize(("num_buckets", "max_distance", "bidirectional"), TABLES)
def test_distances_have_the_biases_of_their_buckets_and_tables_their_gradients(
    num_buckets, max_distance, bidirectional, dtype
):
    """This holds for all lengths, however few distances there are."""
    options = {"bidirectional": bidirectional, "max_distance": max_distance}
    table = np.random.default_rng(0).standard_normal((num_buckets, 3)).astype(dtype)
    bias = regard.positional.t5_distance_bias(table, **options)
    assert bias.dtype == dtype
    assert bias.flags.c_contiguous
    buckets = t5_buckets(700, 900, query_offset=50, num_buckets=num_buckets, **options)
    reach = bias.shape[1] // 2
    after = np.arange(900) - np.arange(50, 750)[:, None]
    found = bias[:, np.clip(reach + after, 0, 2 * reach)]
    assert_same_bits(found, np.ascontiguousarray(np.moveaxis(table[buckets], -1, 0)))
    if reach > 1:  # one distance less would be too few on some side
        fewer = np.clip(after, 1 - reach, reach - 1) + reach
        assert not np.array_equal(bias[:, fewer], found)

    # The map is linear. The gradient is its transpose, which sums over the distances of a bucket.
    grad = np.random.default_rng(1).standard_normal(bias.shape).astype(dtype)
    found = regard.positional.t5_distance_bias_backward(grad, num_buckets=num_buckets, **options)
    assert found.dtype == dtype
    assert found.shape == table.shape
    for number in range(num_buckets):
        one = np.zeros(table.shape)
        one[number] = 1
        columns = regard.positional.t5_distance_bias(one, **options)
        wanted = (columns * grad.astype(float)).sum(axis=-1)
        np.testing.assert_allclose(found[number], wanted, rtol=4 * np.finfo(dtype).eps, atol=1e-12)
