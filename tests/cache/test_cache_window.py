"""A cache with a window gives the results of one call with all keys and a mask, in bounded
memory."""

import itertools

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, tokens
from element_types import each_in_one_type
from inside_cache import page_bytes
from reference import assert_same_bits

CASES = [
    # window, sink tokens, appends
    (1, 0, (1,) * 6),
    (1, 3, (1,) * 9),
    (5, 0, (1,) * 30),
    (5, 2, (1,) * 30),
    (7, 1, (3, 1, 9, 1, 1, 1, 14, 2, 1, 1)),
    (4, 0, (40, 1, 1, 1, 1, 1, 1, 17, 1)),
    (4, 6, (2, 2, 2, 2, 2, 2, 2, 2)),
    (16, 4, (11, 1, 1, 1, 30, 30, 1, 5, 5, 5, 5, 1, 1, 1)),
    (100, 0, (60, 1, 1, 90, 1, 150, 1, 1)),
    (10**12, 3, (5, 1, 7)),
]
OPTIONS = {
    "plain": {},
    "scores": {"scale": 0.5, "softcap": 2.0, "alibi_slopes": normal(6, 4), "sinks": normal(7, 4)},
    "narrower": {"window": (2, 0)},
    "wider": {"window": (10**6, None)},
    "both ways": {"is_causal": False},
}


def assert_bounded(cache, window, keep_first, appends, dtype, batch=2):
    """Check the bound: sink tokens, the window, the longest two appends, and two pages, or three
    with sink tokens."""
    size = page_bytes(cache) // (2 * 13 * dtype.itemsize)
    most = sum(sorted(appends)[-2:])
    pages = 3 if keep_first else 2
    tokens_held = min(sum(appends), keep_first + window + most) + pages * size
    assert cache.nbytes <= batch * (tokens_held * 2 * 13 * dtype.itemsize + 400)


@each_in_one_type(
    [f"{number}-{options}" for number in range(len(CASES)) for options in OPTIONS], "dtype"
)
def test_answers_are_those_of_a_mask(case, dtype):
    number, _, name = case.partition("-")
    (window, keep_first, appends), options = CASES[int(number)], OPTIONS[name]
    sizes = {"keep_last": window, "keep_first": keep_first}
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, dtype, **sizes)
    for step, new in enumerate(appends):
        key, value = tokens(step, 2, new)
        cache.append(key, value)
        model.append(key, value)
        assert_answers(cache, model, normal(step, 2, 4, new, 8, dtype=dtype), **options)
        assert_bounded(cache, window, keep_first, appends[: step + 1], dtype)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 9])
def test_queries_anywhere_with_a_mask(length, target):
    """Queries come before there are sink tokens too, and beyond all keys."""
    sizes = {"keep_last": 3, "keep_first": 4}
    cache = regard.KVCache(2, 2, 8, 5, **sizes)
    model = Model(2, 2, 8, 5, np.float32, **sizes)
    key, value = tokens(0, 2, length)
    cache.append(key, value)
    model.append(key, value)
    mask = normal(1, 2, length) > 0
    for offset in (max(length - 2, 0), length, length + 3, 40):
        query = normal(2, 2, 4, 2, 8, dtype=np.float32)
        assert_answers(cache, model, query, mask=mask, query_offset=offset)


@pytest.mark.parametrize(("window", "keep_first", "appends"), CASES)
def test_types(window, keep_first, appends, half):
    """Numbers stored in 16 bits are rounded once."""
    sizes = {"keep_last": window, "keep_first": keep_first}
    cache = regard.KVCache(1, 2, 8, 5, dtype=half, **sizes)
    model = Model(1, 2, 8, 5, half, **sizes)
    for step, new in enumerate(appends):
        key, value = tokens(step, 1, new)
        cache.append(key, value)
        model.append(key, value)
        for kind in (half, np.float32):
            assert_answers(cache, model, normal(step, 1, 4, new, 8).astype(kind))


@each_in_one_type(list(itertools.product([1, 4, 9], [0, 1, 6])), "dtype")
def test_ragged(case, dtype):
    window, keep_first = case
    sizes = {"keep_last": window, "keep_first": keep_first}
    cache = regard.KVCache(3, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(3, 2, 8, 5, dtype, **sizes)
    random = np.random.default_rng(window * 10 + keep_first)
    for step in range(15):
        new = int(random.integers(1, 6))
        lengths = random.integers(0, new + 1, 3)
        key, value = tokens(step, 3, new)
        offsets = cache.lengths
        cache.append(key, value, lengths)
        model.append(key, value, lengths)
        query = normal(step, 3, 4, new, 8, dtype=dtype)
        assert_answers(cache, model, query, offsets=offsets)
        kv_len = len(cache)
        masks = [normal(step, 3, 1, new, kv_len) > 0, normal(step, new, kv_len, dtype=dtype)]
        masks.append(np.array(True))
        for mask in masks[:2]:
            assert_answers(cache, model, query, offsets=offsets, mask=mask)


@pytest.mark.parametrize("page_size", [None, 16, 48])
@pytest.mark.parametrize("storage_of", ["float32", "int8", "float16"])
@pytest.mark.parametrize("window", [1, 20, 100])
def test_the_bits_of_the_option_window(window, storage_of, page_size, target):
    plain = regard.KVCache(2, 2, 8, 5, dtype=storage_of)
    cache = regard.KVCache(2, 2, 8, 5, dtype=storage_of, keep_last=window, page_size=page_size)
    for step, new in enumerate((30, 1, 1, 90, 1, 1, 40, 7)):
        for each in (plain, cache):
            each.append(*tokens(step, 2, new), lengths=[new, (new + 1) // 2])
        for q_len in (1, (new + 1) // 2):
            query = normal(step, 2, 6, q_len, 8, dtype=np.float32)
            for options in ({}, {"window": (window + 5, 0)}, {"softcap": 2.0, "return_lse": True}):
                want = plain.attend(query, **options | {"window": (window - 1, 0)})
                assert_same_bits(cache.attend(query, **options), want)
        want = plain.attend(query, window=(window - 1, 0), return_weights=True)
        assert_same_bits(cache.attend(query, return_weights=True), want)


@pytest.mark.parametrize("keep_first", [1, 4, 16, 20])
@pytest.mark.parametrize("page_size", [16, 32])
@pytest.mark.parametrize("storage_of", ["float32", "int8"])
def test_keep_first_have_the_bits_of_a_mask(storage_of, page_size, keep_first, target):
    """This holds also under a narrower window, which hides the sink tokens that it does not
    reach."""
    plain = regard.KVCache(1, 2, 8, 5, dtype=storage_of)
    sizes = {"keep_last": 20, "keep_first": keep_first, "page_size": page_size}
    cache = regard.KVCache(1, 2, 8, 5, dtype=storage_of, **sizes)
    for step, new in enumerate((5, 1, 30, 1, 90, 1, 1, 40)):
        for each in (plain, cache):
            each.append(*tokens(step, 1, new))
        query = normal(step, 1, 6, new, 8, dtype=np.float32)
        positions, keys = np.arange(len(cache) - new, len(cache))[:, None], np.arange(len(cache))
        for left in (None, 3, 25, 90, 10**6):
            shown = (keys > positions - 20) | (keys < keep_first)
            if left is not None:
                shown &= keys >= positions - left
            for given in (True, normal(step, new, len(cache)) > -1):
                want = plain.attend(query, shown & given, return_lse=True)
                options = {} if left is None else {"window": (left, None)}
                mask = None if given is True else given
                got = cache.attend(query, mask, return_lse=True, **options)
                np.testing.assert_allclose(got[0], want[0], 0, 2e-6)
                if left is None:
                    assert_same_bits(got, want)


def test_what_is_evicted_is_refused_and_can_be_asked_for_in_time():
    cache = regard.KVCache(1, 1, 4, keep_last=4, keep_first=1, page_size=16)
    one = np.ones((1, 1, 4))
    for _ in range(60):
        cache.append(one, one)
    cache.attend(np.ones((1, 9, 4)))  # positions from 48 on are kept, 12 before the end
    message = (
        r"query at position 50 of batch entry 0 would see positions from 47 on, .* 16 to 47 are"
    )
    for call in (cache.attend, cache.explain):
        with pytest.raises(ValueError, match=message):
            call(np.ones((1, 10, 4)))
    for sides in ((2, 0), [2, 0], np.array([2, 0])):
        cache.attend(np.ones((1, 10, 4)), window=sides)
    cache.attend(np.ones((1, 3, 4)), query_offset=5)  # in the page of the sink token
    cache.attend(np.ones((1, 3, 4)), query_offset=200)
    cache.append(np.ones((1, 40, 4)), np.ones((1, 40, 4)))
    cache.attend(np.ones((1, 40, 4)))


@pytest.mark.parametrize("keep_first", [0, 2])
def test_the_last_append_can_be_undone(keep_first, dtype):
    sizes = {"keep_last": 5, "keep_first": keep_first}
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, dtype, **sizes)
    for step, new in enumerate((9, 1, 1, 8, 1, 2, 1, 1, 1, 1, 1, 1, 30, 1)):
        for wrong in (1, 0):
            lengths = [new, new // 2] if wrong else None
            cache.append(*tokens(2 * step + wrong, 2, new), lengths=lengths)
            if wrong:
                cache.truncate(len(cache) - new)
        model.append(*tokens(2 * step, 2, new))
        assert_answers(cache, model, normal(step, 2, 4, 1, 8, dtype=dtype))
    with pytest.raises(ValueError, match="length must be at least 53 for batch entry 0, whose pos"):
        cache.truncate(52)
    assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=dtype))
    cache.truncate(keep_first)
    model.truncate([keep_first] * 2)
    cache.append(*tokens(0, 2, 8))
    model.append(*tokens(0, 2, 8))
    assert_answers(cache, model, normal(0, 2, 4, 8, 8, dtype=dtype))


def test_capacity_limits_an_append(dtype):
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, keep_last=5, keep_first=2, capacity=10)
    model = Model(2, 2, 8, 5, dtype, keep_last=5, keep_first=2)
    for step, new in enumerate((10, 3, 1, 2, 3, 3, 3)):
        for each in (cache, model):
            each.append(*tokens(step, 2, new))
        assert_answers(cache, model, normal(step, 2, 4, new, 8, dtype=dtype))
    with pytest.raises(ValueError, match="at most 3 new tokens at once, got 4"):
        cache.append(*tokens(0, 2, 4))
    assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=dtype))


@pytest.mark.parametrize("sizes", [{"keep_last": 30}, {"keep_last": 400, "keep_first": 4}])
def test_memory_is_bounded(sizes):
    cache = regard.KVCache(2, 2, 8, 5, **sizes)
    seen = set()
    for step in range(700):
        cache.append(*tokens(step, 2, 1))
        seen.add(cache.nbytes)
    assert len(cache) == 700
    sinks = sizes.get("keep_first", 0)
    assert_bounded(cache, sizes["keep_last"], sinks, [1] * 700, np.dtype("f4"))
    cache.append(*tokens(0, 2, 700))
    for step in range(500):
        cache.append(*tokens(step, 2, 1))
    most = cache.nbytes
    for step in range(500):
        cache.append(*tokens(step, 2, 1))
    assert cache.nbytes <= most  # the memory of a prompt is reused


@pytest.mark.parametrize("keep_first", [0, 2])
def test_nan_goes_with_its_token(keep_first, dtype, target):
    """For evicted, truncated and padding tokens: hidden ones change nothing, and visible ones
    show."""
    cache = regard.KVCache(1, 2, 8, 5, dtype=dtype, keep_last=4, keep_first=keep_first)
    nan = [np.full((1, 2, 2, dim), np.nan) for dim in (8, 5)]
    query = normal(0, 1, 4, 1, 8, dtype=dtype)
    for step in range(12):
        cache.append(*tokens(step, 1, 1))
    cache.append(*nan)
    assert np.isnan(cache.attend(query)).all()
    cache.truncate(12)
    assert np.isfinite(cache.attend(query)).all()
    cache.append(*nan, lengths=[0])
    cache.append(*nan, lengths=[1])
    for step in range(4):
        assert np.isnan(cache.attend(query)).all()
        cache.append(*tokens(step, 1, 1))
    assert np.isfinite(cache.attend(query)).all()
