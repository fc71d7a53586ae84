"""Test caches in 8 and in 4 bits: how they round, and that results are exact for the stored
rows."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import regard
from cache_tokens import normal
from error_limits import assert_matches, expected
from fewer_bits import (
    ALL,
    groups_of,
    held_rows,
    in_4_bits,
    in_8_bits,
    in_float8,
    meeting,
    rotated_by,
)
from inside_cache import stored_rows
from messages import says
from reference import assert_same_bits
from test_cache import OPTIONS

INT8, FLOAT8, FOUR = ALL


def some_keys(seed, *shape):
    """Return keys whose channels have an offset that all tokens share, and with some larger
    rows."""
    keys = normal(seed, *shape) + 8 * normal(seed + 1, 1, shape[1], 1, shape[3])
    keys[:, :, ::7] *= 4
    return keys


def filled(dtype, sizes=(64, 32), tokens=30, batch=2, **options):
    """Return a cache, and the keys and values as it stores them, with keys rotated."""
    cache = regard.KVCache(batch, 2, *sizes, dtype=dtype, **options)
    key, value = (
        make(seed, batch, 2, tokens, size)
        for seed, make, size in zip((0, 1), (some_keys, normal), sizes, strict=True)
    )
    for start, stop in ((0, tokens // 2), (tokens // 2, tokens - 1), (tokens - 1, tokens)):
        cache.append(key[:, :, start:stop], value[:, :, start:stop])
    means = np.float32(options.get("key_means", np.zeros((2, sizes[0]))))[:, None]
    return cache, *held_rows(dtype, key.astype(np.float32) - means, value)


CASES = [
    (dtype, name, ("float32", "float64")[number % 2])
    for number, (name, dtype) in enumerate(itertools.product(OPTIONS, ALL))
]


@pytest.mark.parametrize("has_means", [False, True], ids=["", "means"])
@pytest.mark.parametrize(("dtype", "name", "kind"), CASES)
def test_what_is_stored_is_attended_to(dtype, name, kind, has_means, target):
    """With means, the results are those of keys that are stored without means and then get them
    back."""
    means = has_means * 10 * normal(4, 2, 64).astype(np.float32)
    cache, *arrays = filled(dtype, **{"key_means": means} if has_means else {})
    key, value = (array.astype(kind) for array in arrays)
    query = normal(2, 2, 6, 4, 64).astype(kind)
    given = {"is_causal": True, "query_offset": 26} | OPTIONS[name]
    given = {name: value for name, value in given.items() if name[:6] not in ("return", "thread")}
    turned, mask = meeting(query, dtype), given.pop("mask", None)
    if has_means:
        full = (meeting(arrays[0], dtype) + means[:, None]).astype(kind)
        assert abs(cache.keys - full).max() <= 2.0**-21 * abs(full).max()
        want = expected(query, full, value, mask, **given)
    else:
        want = expected(turned, key, value, mask, **given)
    options = OPTIONS[name] | {"return_weights": True, "return_lse": True}
    output, weights, lse = got = cache.attend(query, **options)
    if dtype != FOUR:
        assert_matches(want, output=output, weights=weights, lse=lse)
    else:  # queries are rounded
        _assert_near(want.exact, got, turned, key, value, given)
    for threads in (1, 2):
        assert_same_bits(cache.attend(query, **options | {"threads": threads}), got)


def _assert_near(exact, got, query, key, value, options):
    """Check the error that queries have as integers: half of 32767 steps, and the cost of 2 fewer
    bits."""
    scales = np.broadcast_to(np.abs(options.get("scale", 64**-0.5)), (2, 6))[..., None, None]
    steps = np.abs(query).max(-1, keepdims=True) / 32767 * scales
    of_keys = np.repeat(np.abs(key).sum(-1).max(-1), 3, axis=1)[..., None, None]
    moved = 0.625 * steps * of_keys  # change of a score; caps and functions change it less
    output, weights, lse = (part.astype(np.float64) for part in got)
    shares = np.expm1(2 * moved)
    assert (np.abs(lse - exact.lse) <= moved[..., 0] + 1e-5).all()
    assert (np.abs(weights - exact.weights) <= shares * exact.weights + 1e-6).all()
    assert (np.abs(output - exact.output) <= shares * np.abs(value).max() + 1e-5).all()


@pytest.mark.parametrize(("dtype", "most"), [(INT8, 0.01), (FLOAT8, 0.05), (FOUR, 0.13)])
def test_a_large_constant_costs_no_precision_with_its_mean(dtype, most):
    query, key, value = normal(0, 3, 1, 2, 300, 64, dtype=np.float32)
    key[..., 3] += 100
    arrays = (array.astype(np.float64) for array in (query, key, value))
    want = regard.scaled_dot_product_attention(*arrays, is_causal=True)
    errors = []
    for means in (None, key[0, :, :20].mean(axis=1)):
        cache = regard.KVCache(1, 2, 64, dtype=dtype, key_means=means)
        cache.append(key, value)
        errors.append(np.linalg.norm(cache.attend(query) - want) / np.linalg.norm(want))
    assert errors[1] <= most < errors[0] / 2


@pytest.mark.parametrize(
    ("dtype", "heads", "head_dim", "value_dim"),
    [
        (INT8, 8, 40, 24),  # groups of 8 and of 2 dimensions, smaller than any vector
        (INT8, 2, 6, 24),
        (FLOAT8, 16, 64, 96),
        (FLOAT8, 6, 32, 32),
        (FOUR, 2, 96, 64),
        (FOUR, 4, 160, 128),
        (FOUR, 10, 96, 64),
    ],
)
def test_bits_do_not_depend_on_how_queries_come(dtype, heads, head_dim, value_dim, half, target):
    """Queries come many rows at once or one by one, in pages of any size, on any number of
    threads, and with any number of query heads for a key head."""
    sizes = head_dim, value_dim
    options = {"dtype": dtype}
    if heads % 4 == 2:
        options["key_means"] = 20 * normal(3, 2, head_dim)
    caches = [regard.KVCache(2, 2, *sizes, page_size=size, **options) for size in (None, 48, 16)]
    counts = [200, 120], [70, 70]
    for seed, lengths in enumerate(counts):
        key, value = some_keys(seed, 2, 2, 200, head_dim), normal(seed, 2, 2, 200, value_dim)
        for cache in caches:
            cache.append(key, value, lengths)
    for kind in (half, "float64" if half == np.float16 else "float32"):
        query = normal(2, 2, heads, 70, head_dim).astype(kind)
        offsets = np.sum(counts, axis=0) - 70
        want = caches[0].attend(query)
        for cache in caches:
            for threads in (1, 2):
                assert_same_bits(cache.attend(query, threads=threads), want)
                for start, stop in ((0, 1), (3, 5), (20, 22), (69, 70)):
                    some = cache.attend(
                        query[:, :, start:stop], query_offset=offsets + start, threads=threads
                    )
                    assert_same_bits(some, want[:, :, start:stop])


@pytest.mark.parametrize("given", ["float16", "float32", "float64"])
def test_rounding_to_float8(given, target):
    """The bytes equal the bytes of ml_dtypes, for rotated keys and scales that are powers of two or
    not."""
    scales = np.float32([0.25, 3])
    cache = regard.KVCache(
        1, 2, 64, 8, dtype=FLOAT8, key_scales=scales, value_scales=2 * scales, page_size=16
    )
    key, value = some_keys(0, 1, 2, 30, 64).astype(given), normal(1, 1, 2, 30, 8).astype(given)
    value[0, 0, 3] = np.float64([464, -448, 1.0625, 1.1875, 2**-9, 2**-10, 3 * 2**-10, 0]) / 2
    value[0, 1, 4] = np.float64([0, -0.0, 100, 7e-3, -7e-3, 1e-5, 1, -1])
    cache.append(key, value)
    with np.errstate(all="ignore"):
        key_bytes, value_bytes, *_ = stored_rows(cache)
    for rows, stored, by in zip(
        (rotated_by(FLOAT8, key[0].astype(np.float32) / scales[:, None, None]), value[0]),
        (key_bytes, value_bytes),
        (np.float32(1), 2 * scales[:, None, None]),
        strict=True,
    ):
        wanted = (rows.astype(np.float32) / by).astype(ml_dtypes.float8_e4m3fn)
        assert np.array_equal(stored, wanted.view(np.uint8))
    numbers = value_bytes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(cache.values[0], numbers * (2 * scales)[:, None, None])
    assert in_float8(np.float32([464, -448]), 1).tolist() == [448, -448]


def test_groups_of_four_bits(target):
    """Integers, scales and minimums follow the definition, and no number is off by more than half a
    step."""
    cache = regard.KVCache(1, 2, 64, 96, dtype=FOUR)
    key, value = some_keys(0, 1, 2, 30, 64), normal(1, 1, 2, 30, 96)
    value[0, 0, 3], value[0, 1, 4, :32] = 2.5, np.linspace(-1, 1, 32)
    value[0, 1, 5] = 1e-7 * normal(2, 96)  # too small for precise float16 scales
    value[0, 1, 6, :2] = 65504, -65504
    cache.append(key, value)
    rows = [each.astype(np.float32)[0] for each in (key, value)]
    rows[0] = rotated_by(FOUR, rows[0])
    parts = stored_rows(cache)
    for row, stored, of_groups in zip(rows, parts[:2], parts[2:], strict=True):
        integers, scales, minimums = groups_of(row)
        nibbles = stored.reshape(*integers.shape[:-1], 16)
        assert np.array_equal(np.concatenate([nibbles & 15, nibbles >> 4], -1), integers)
        assert of_groups.dtype == np.float16
        pairs = of_groups.reshape(*scales.shape, 2)
        assert np.array_equal(pairs[..., 0], scales)
        assert np.array_equal(pairs[..., 1], minimums)
        off = abs(in_4_bits(row) - row).reshape(integers.shape).max(-1)
        # Rounding the scale moves the largest number by 15 times the change of the scale.
        limit = scales * (0.5 + 15 * 2.0**-11) + abs(minimums) * 2.0**-11 + 15 * 2.0**-25
        assert (off <= limit).all()
    assert (cache.values[0, 0, 3] == 2.5).all()


@pytest.mark.parametrize(
    ("number", "kind"), [(np.nan, "float32"), (np.inf, "float64"), (-np.inf, "float32")]
)
def test_queries_that_are_not_finite(number, kind, target):
    """In 4 bits, all scores of such a row are NaN, and no scores of other rows."""
    cache, *_ = filled(FOUR)
    query = normal(0, 2, 4, 9, 64).astype(kind)
    query[1, 2, 3, 4] = number
    output = cache.attend(query)
    is_nan = np.zeros((2, 4, 9), bool)
    is_nan[1, 2, 3] = True
    assert np.array_equal(np.isnan(output).all(-1), is_nan)
    assert np.array_equal(np.isnan(output).any(-1), is_nan)
    one = cache.attend(query[:, :, 3:4], query_offset=24)
    assert np.isnan(one[1, 2, 0]).all()
    assert_same_bits(one[0], output[0, :, 3:4])


@pytest.mark.parametrize("power", [-140, -60, 0, 60, 118])
def test_queries_of_any_size(power, target):
    cache, key, value = filled(FOUR, tokens=4)
    query = (normal(0, 2, 4, 1, 64) * 2.0**power).astype(np.float32)
    got = cache.attend(query, scale=2.0 ** min(-power, 118) / 8)
    same = cache.attend(np.repeat(query, 9, axis=2), scale=2.0 ** min(-power, 118) / 8,
                        is_causal=False)  # fmt: skip
    assert_same_bits(got, same[:, :, :1])
    assert np.isfinite(got).all()
    if power > -100:
        exact = expected(
            meeting((query * 2.0**-power).astype(np.float32), FOUR), *(key, value), scale=1 / 8
        ).exact
        assert abs(got - exact.output).max() <= 5e-4


@pytest.mark.parametrize(
    ("dtype", "name", "number"),
    [
        (INT8, "key", np.nan), (INT8, "value", -np.inf), (INT8, "key", 1e39),
        (FLOAT8, "key", np.inf), (FLOAT8, "key", 1e6), (FLOAT8, "value", 470.0),
        (FLOAT8, "value", np.nan), (FOUR, "key", 1e39), (FOUR, "value", -65600.0),
        (FOUR, "value", np.nan),
    ],
)  # fmt: skip
def test_what_cannot_be_stored(dtype, name, number):
    """Nothing is appended; padding may be anything."""
    cache, *_ = filled(dtype, (32, 32))
    query = normal(2, 2, 2, 1, 32)
    before = cache.attend(query).tobytes()
    given = {each: normal(0, 2, 2, 3, 32) for each in ("key", "value")}
    given[name][1, 1, 2, 5] = number
    with pytest.raises(ValueError, match=says(name, dtype)):
        cache.append(**given)
    assert cache.lengths.tolist() == [30, 30]
    assert cache.attend(query).tobytes() == before
    fork = cache.fork()
    fork.append(**given, lengths=[3, 2])
    assert np.isfinite(fork.attend(query)).all()


def test_numbers_that_are_too_large_or_small_for_their_scales():
    """A ValueError says so, whatever NumPy's error settings are; small numbers become 0."""
    cache = regard.KVCache(1, 1, 32, dtype=FLOAT8, key_scales=2.0**-100, value_scales=3)
    rows = np.zeros((1, 1, 1, 32), np.float32)
    with np.errstate(all="raise"):
        cache.append(rows, rows + np.float32(1e-44))
        assert not cache.values.any()
        with pytest.raises(ValueError, match="key_scales"):
            cache.append(rows + np.float32(1e10), rows)
    for dtype, number in ((FLOAT8, 30), (FOUR, -65504)):  # in the rotation
        cache = regard.KVCache(1, 1, 256, 32, dtype=dtype)
        with pytest.raises(ValueError, match="key"):
            cache.append(np.full((1, 1, 1, 256), number), rows)


def test_layers_have_their_own_scales_and_means(tmp_path):
    """This holds in memory, in a file and in forks, and only entries of the same scales join."""
    scales, means = np.float32([[0.5, 1], [2, 4], [0.125, 8]]), normal(1, 3, 2, 32)
    scaled = {"dtype": FLOAT8, "key_scales": scales, "value_scales": scales[::-1]}
    options = scaled | {"key_means": means}
    key, value = normal(0, 2, 1, 2, 20, 32)
    caches = regard.KVCaches(3, 1, 2, 32, page_size=16, **options)
    assert np.array_equal(caches.key_scales, scales)
    assert np.array_equal(caches.key_means, means.astype(np.float32))
    each_own = (
        {name: rows[n] for name, rows in options.items() if name != "dtype"} for n in range(3)
    )
    alone = [regard.KVCache(1, 2, 32, dtype=FLOAT8, **own) for own in each_own]
    assert np.array_equal(alone[2].key_means, caches[2].key_means)
    for each in (*caches, *alone):
        each.append(key, value)
    assert not np.array_equal(alone[0].keys, alone[1].keys)
    caches.fork().save(tmp_path / "file")
    for name, given in (("key_scales", {"dtype": FLOAT8}), ("key_means", scaled)):
        other = regard.KVCaches(3, 0, 2, 32, page_size=16, **given)
        with pytest.raises(ValueError, match=name):
            other.adopt(regard.KVCaches.load(tmp_path / "file"))
    alike = regard.KVCaches(3, 0, 2, 32, page_size=16, **options)
    alike.adopt(regard.KVCaches.load(tmp_path / "file"))
    with regard.KVCaches.load(tmp_path / "file", mmap=True) as opened:
        for layers in (caches, opened, alike):
            for each, want in zip(layers, alone, strict=True):
                assert_same_bits((each.keys, each.values), (want.keys, want.values))
                assert_same_bits(each.attend(key), want.attend(key))
    mixed = regard.KVCaches(2, 1, 1, 4, dtype=["int8", "float32"], key_means=[[[1, 2, 3, 4]], None])
    assert mixed.key_means[0].tolist() == [[1, 2, 3, 4]]
    assert mixed.key_means[1] is None


@pytest.mark.parametrize(
    ("given", "page_size"), [("float16", None), ("float32", 16), ("float64", None)]
)
def test_rounding_to_int8(given, page_size, target):
    """Rotated keys are rounded to the nearest of 255 steps per row, half to even."""
    key = some_keys(0, 1, 2, 30, 8).astype(given)
    value = normal(1, 1, 2, 30, 5).astype(given)
    value[0, 0, 3], value[0, 1, 4] = [127, 0.5, 1.5, 2.5, -2.5], 0
    cache = regard.KVCache(1, 2, 8, 5, dtype=INT8, page_size=page_size)
    cache.append(key[:, :, :20], value[:, :, :20])
    cache.append(key[:, :, 20:], value[:, :, 20:])
    key, value = key.astype(np.float32), value.astype(np.float32)
    parts = stored_rows(cache)
    for rows, stored, scales in zip(
        (rotated_by(INT8, key[0]), value[0]), parts[:2], parts[2:], strict=True
    ):
        assert stored.dtype == np.int8
        assert abs(stored.astype(int)).max() == 127
        exact = stored * scales[..., None].astype(np.float64)
        assert np.array_equal(exact, in_8_bits(rows))
        assert (abs(exact - rows) <= scales[..., None] * (0.5 + 127 * 2.0**-23)).all()
    assert parts[1][0, 3].tolist() == [127, 0, 2, 2, -2]
    assert not parts[1][1, 4].any()
    assert (parts[3] > 0).all()


@pytest.mark.parametrize("power", [-90, 60, 114])
def test_large_int8_keys_and_small_queries(power, target):
    """Keys are large and queries small, or the reverse; the scores are ordinary."""
    cache = regard.KVCache(1, 1, 64, dtype=INT8)
    key, value = normal(0, 2, 1, 1, 50, 64, dtype=np.float32)
    cache.append(key * np.float32(2.0**power), value)
    query = normal(1, 1, 1, 30, 64, dtype=np.float32) * np.float32(2.0**-power)
    want = cache.attend(query, is_causal=False, return_lse=True)
    for i in (0, 3, 29):
        one = cache.attend(query[:, :, i : i + 1], is_causal=False, return_lse=True)
        assert_same_bits(one, (want[0][:, :, i : i + 1], want[1][:, :, i : i + 1]))
    held = held_rows(INT8, key * np.float32(2.0**power), value)
    exact = expected(meeting(query), *(array.astype(np.float32) for array in held))
    assert_matches(exact, output=want[0], lse=want[1])


@pytest.mark.parametrize("number", [0.0, 1e-45, 1e-40, 1e-37, 1.5e-36, 3.4e38, -0.0])
def test_numbers_at_the_ends_of_int8(number):
    """The row is zero, or too small for any precise scale, or the largest."""
    cache = regard.KVCache(1, 1, 4, dtype=INT8)
    rows = np.full((1, 1, 4), number)
    cache.append(rows, rows)
    output = cache.attend(np.zeros((1, 1, 4), np.float32), is_causal=False)
    least = float(np.finfo(np.float32).smallest_normal)
    assert abs(output - number).max() <= max(abs(number) * 2.0**-22, least / 2)
