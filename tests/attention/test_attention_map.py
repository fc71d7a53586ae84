"""Test `attention_map` against pictures computed from all weights."""

from functools import partial

import hypothesis
import numpy as np
import pytest

import regard
from drawn_problems import TARGETS, examples, on_target, problems
from error_limits import magnitudes
from reference import arithmetic, assert_same_bits, largest, result_type, solve

POOLINGS = "max", "sum", "mean"


def pooled(weights, height, width, reduce):
    *_, q_len, kv_len = weights.shape
    rows = np.arange(height) * q_len // height
    keys = np.arange(width) * kv_len // width
    pool = (np.maximum if reduce == "max" else np.add).reduceat
    pixels = pool(pool(weights, rows, axis=-2), keys, axis=-1)
    if reduce == "mean":
        pixels = pixels / np.outer(np.diff([*rows, q_len]), np.diff([*keys, kv_len]))
    return pixels


def weights_of(problem, options, **how):
    s = solve(*problem.arrays, **options, **how)
    return s.shaped(np.where(s.seen, s.weights * s.share, 0))


@hypothesis.given(problem=problems(dropout=False, mixed=False), target=TARGETS)
@examples(100)
def test_pictures_of_all_weights(problem, target):
    query, options = problem.query, problem.options
    if problem.batch != query.shape[:-3]:
        inner = query.shape[-3:] if query.ndim > 2 else (1, *query.shape)
        query = np.broadcast_to(query, (*problem.batch, *inner))
    inner = arithmetic(result_type(problem.query, problem.key))
    exact = weights_of(problem, options, precision=np.longdouble)
    moved = weights_of(problem, options, change=partial(magnitudes, float(np.finfo(inner).eps)))
    *_, q_len, kv_len = exact.shape
    if 0 in exact.shape:
        return
    least = kv_len * q_len * 2.0 ** {4: -100, 8: -960}[inner.itemsize]
    shapes = {(q_len, kv_len), (min(7, q_len), min(5, kv_len)), (1, 1)}
    for height, width in shapes:
        for reduce in POOLINGS:
            shape = height, width
            with on_target(target):
                got = regard.attention_map(
                    query, problem.key, shape=shape, reduce=reduce, **options
                )
            assert got.dtype == inner
            want = pooled(exact, *shape, reduce)
            assert got.shape == want.shape
            limit = 4 * largest(pooled(moved, *shape, reduce)) + least
            assert largest(got - want) <= limit


@pytest.mark.parametrize("reduce", POOLINGS)
def test_regions_and_threads(reduce, dtype, target, layer):
    random = np.random.default_rng(0)
    query = random.standard_normal((2, 4, 530, 16)).astype(dtype)
    key = random.standard_normal((2, 2, 700, 16)).astype(dtype)
    options = {"is_causal": True, "query_offset": 170}
    _, weights = regard.scaled_dot_product_attention(
        query, key, key, **options, return_weights=True
    )
    regions = [
        (slice(13, 60), slice(20, 99)),
        (slice(500, None), slice(-3, None)),
        (slice(7), slice(None)),
        (slice(30, 30), slice(0, 5)),
    ]
    more = {"reduce": reduce, "shape": (11, 9), "regions": regions, **options}
    pictures = regard.attention_map(query, key, **more, threads=1)
    for region, picture in zip(regions, pictures, strict=True):
        part = weights[(..., *region)]
        height, width = min(11, part.shape[-2]), min(9, part.shape[-1])
        assert picture.shape == (2, 4, height, width)
        if height:
            want = pooled(part.astype(np.float64), height, width, reduce)
            assert np.allclose(picture, want, rtol=200 * np.finfo(dtype).eps, atol=0)
    again = regard.attention_map(query, key, **more, threads=3)
    assert_same_bits(tuple(again), tuple(pictures))
    seen = []
    regard.attention_map(query, key, **more, progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == (8 * (47 + 30 + 7), 8 * (47 + 30 + 7))
    assert sorted(seen) == seen


def test_nan_shows_in_its_pixels(dtype, target):
    query, key = np.random.default_rng(1).standard_normal((2, 1, 40, 8)).astype(dtype)
    key[0, 20] = np.nan
    for reduce in POOLINGS:
        picture = regard.attention_map(query, key, is_causal=True, shape=(4, 4), reduce=reduce)
        assert np.isnan(picture[0, 2:, :3]).all()
        assert not np.isnan(picture[0, :2]).any()
