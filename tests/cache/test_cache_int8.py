"""Test a cache in 8 bits: how it rounds, and that its results are exact for the stored rows."""

import numpy as np
import pytest
from test_cache import OPTIONS

import regard
from cache_model import Model, assert_answers, normal, tokens
from fewer_bits import in_8_bits, meeting
from inside_cache import page_bytes, stored_rows
from int8_model import rotated
from reference import assert_matches, assert_same_bits, expected

INT8 = np.dtype(np.int8)


def held(cache):
    """Return the exact values of the stored tokens of all entries: keys as they are rotated,
    values."""
    with np.errstate(all="ignore"):  # beyond an entry's length
        found = [stored_rows(cache, entry) for entry in range(len(cache.lengths))]
    key, value, key_scales, value_scales = (
        np.stack([_padded(rows[n].astype(np.float64), len(cache)) for rows in found])
        for n in range(4)
    )
    return key * key_scales[..., None], value * value_scales[..., None]


def _padded(rows, length):
    return np.pad(rows, [(0, 0), (0, length - rows.shape[1]), *[(0, 0)] * (rows.ndim - 2)])


def keys_with_offset(seed, *shape):
    """Return keys whose channels have an offset that all tokens share, and with some large rows."""
    keys = normal(seed, *shape) + 20 * normal(seed + 1, 1, shape[1], 1, shape[3])
    keys[:, :, ::7] *= 50
    return keys


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_what_is_stored_is_attended_to(options, kind, target):
    cache = regard.KVCache(2, 2, 8, 5, dtype="int8")
    for step, new in enumerate((17, 1, 12)):
        cache.append(keys_with_offset(step, 2, 2, new, 8), normal(step, 2, 2, new, 5))
    query = normal(1, 2, 6, 4, 8).astype(kind)
    given = {"is_causal": True, "query_offset": 26} | options
    given = {name: value for name, value in given.items() if name[:6] not in ("return", "thread")}
    key, value = (array.astype(kind) for array in held(cache))
    want = expected(meeting(query), key, value, given.pop("mask", None), **given)
    outputs = {"return_weights": True, "return_lse": True}
    output, weights, lse = got = cache.attend(query, **options | outputs)
    assert_matches(want, output=output, weights=weights, lse=lse)
    for threads in (1, 2):
        assert_same_bits(cache.attend(query, **options | outputs | {"threads": threads}), got)


@pytest.mark.parametrize("head_dim", [40, 6])  # groups of 8 and of 2, smaller than any vector
def test_bits_do_not_depend_on_how_queries_come(head_dim, dtype, target):
    """Queries come many rows at once or one by one, in pages or not, on any number of threads."""
    plain, paged = (
        regard.KVCache(2, 2, head_dim, 24, dtype="int8", page_size=page_size)
        for page_size in (None, 48)
    )
    key, value = keys_with_offset(0, 2, 2, 1500, head_dim), normal(0, 2, 2, 1500, 24)
    for cache in (plain, paged):
        cache.append(key, value, [1500, 900])
        cache.append(keys_with_offset(1, 2, 2, 200, head_dim), normal(1, 2, 2, 200, 24), [200, 70])
    query, offsets = normal(2, 2, 8, 70, head_dim, dtype=dtype), np.array([1700, 970]) - 70
    keys, values = held(plain)
    assert np.array_equal(keys[0, :, :1500], in_8_bits(rotated(key[0].astype(np.float32))))
    assert np.array_equal(values[1, :, :900], in_8_bits(value[1, :, :900].astype(np.float32)))
    want = plain.attend(query)
    for cache in (plain, paged):
        for threads in (1, 2):
            assert_same_bits(cache.attend(query, threads=threads), want)
            for start, stop in ((0, 1), (3, 5), (20, 28), (69, 70)):
                some = cache.attend(
                    query[:, :, start:stop], query_offset=offsets + start, threads=threads
                )
                assert_same_bits(some, want[:, :, start:stop])


@pytest.mark.parametrize("power", [-90, -60, 60, 80, 100, 114])
def test_large_keys_and_small_queries(power, target):
    """Keys are large and queries small, or the reverse; the scores are ordinary."""
    cache = regard.KVCache(1, 1, 64, dtype="int8")
    key, value = normal(0, 2, 1, 1, 50, 64, dtype=np.float32)
    cache.append(key * np.float32(2.0**power), value)
    query = normal(1, 1, 1, 30, 64, dtype=np.float32) * np.float32(2.0**-power)
    want = cache.attend(query, is_causal=False, return_lse=True)
    for i in range(30):
        one = cache.attend(query[:, :, i : i + 1], is_causal=False, return_lse=True)
        assert_same_bits(one, (want[0][:, :, i : i + 1], want[1][:, :, i : i + 1]))
    exact = expected(meeting(query), *(array.astype(np.float32) for array in held(cache)))
    assert_matches(exact, output=want[0], lse=want[1])


def test_short_queries_are_rounded_once(half, target):
    """The result has the query's type; the arithmetic is float32."""
    cache = regard.KVCache(2, 2, 8, 5, dtype="int8")
    cache.append(*tokens(0, 2, 50))
    query = normal(1, 2, 6, 4, 8).astype(half)
    want, lse = cache.attend(query.astype(np.float32), return_lse=True)
    assert_same_bits(cache.attend(query, return_lse=True), (want.astype(half), lse))


@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
@pytest.mark.parametrize("page_size", [None, 16])
def test_rounding(given, page_size, target):
    """Rotated keys are rounded to the nearest of 255 steps per row, half to even."""
    key = keys_with_offset(0, 1, 2, 30, 8).astype(given)
    value = normal(1, 1, 2, 30, 5).astype(given)
    value[0, 0, 3], value[0, 1, 4] = [127, 0.5, 1.5, 2.5, -2.5], 0
    cache = regard.KVCache(1, 2, 8, 5, dtype="int8", page_size=page_size)
    cache.append(key[:, :, :20], value[:, :, :20])
    cache.append(key[:, :, 20:], value[:, :, 20:])
    key, value = key.astype(np.float32), value.astype(np.float32)
    parts = stored_rows(cache)
    for rows, stored, scales in zip((rotated(key[0]), value[0]), parts[:2], parts[2:], strict=True):
        assert stored.dtype == INT8
        assert abs(stored.astype(int)).max() == 127
        exact = stored * scales[..., None].astype(np.float64)
        assert np.array_equal(exact, in_8_bits(rows))
        assert (abs(exact - rows) <= scales[..., None] * (0.5 + 127 * 2.0**-23)).all()
    assert parts[1][0, 3].tolist() == [127, 0, 2, 2, -2]
    assert not parts[1][1, 4].any()
    assert (parts[3] > 0).all()


@pytest.mark.parametrize("number", [0.0, 1e-45, 1e-40, 1e-37, 1.5e-36, 3.4e38, -0.0])
def test_numbers_at_the_ends(number):
    """The row is zero, or too small for any precise scale, or the largest."""
    cache = regard.KVCache(1, 1, 4, dtype="int8")
    rows = np.full((1, 1, 4), number)
    cache.append(rows, rows)
    output = cache.attend(np.zeros((1, 1, 4), np.float32), is_causal=False)
    least = float(np.finfo(np.float32).smallest_normal)
    assert abs(output - number).max() <= max(abs(number) * 2.0**-22, least / 2)
