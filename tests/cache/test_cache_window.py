"""A cache with a window has bounded memory, and answers queries anywhere in it."""

import numpy as np
import pytest

import regard
from cache_kinds import new_cache
from cache_model import assert_answers
from cache_tokens import normal, tokens
from inside_cache import page_bytes


@pytest.mark.parametrize("length", [1, 3, 4, 5, 9])
def test_queries_anywhere_with_a_mask(length, target):
    """Queries come before there are sink tokens too, and beyond all keys."""
    sizes = {"keep_last": 3, "keep_first": 4}
    cache, model = new_cache(2, 2, 8, 5, **sizes)
    for each in (cache, model):
        each.append(*tokens(0, 2, length))
    mask = normal(1, 2, length) > 0
    for offset in (max(length - 2, 0), length, length + 3, 40):
        query = normal(2, 2, 4, 2, 8, dtype=np.float32)
        assert_answers(cache, model, query, mask=mask, query_offset=offset)


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


def test_capacity_limits_an_append(dtype):
    cache, model = new_cache(2, 2, 8, 5, dtype=dtype, keep_last=5, keep_first=2, capacity=10)
    for step, new in enumerate((10, 3, 1, 2, 3, 3, 3)):
        for each in (cache, model):
            each.append(*tokens(step, 2, new))
        assert_answers(cache, model, normal(step, 2, 4, new, 8, dtype=dtype))
    for lengths in (None, [4, 0]):
        with pytest.raises(ValueError, match=r"at most 3 new tokens at once, got 4.* capacity 10"):
            cache.append(*tokens(0, 2, 4), lengths=lengths)
    assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=dtype))


def test_the_window_of_the_last_token_outlives_an_append_that_is_undone():
    cache, model = new_cache(1, 2, 8, 5, keep_last=5, page_size=16)
    for step in range(40):
        for each in (cache, model):
            each.append(*tokens(step, 1, 1))
        cache.append(*tokens(step, 1, 3))
        cache.truncate(step + 1)
        assert_answers(cache, model, normal(step, 1, 4, 1, 8))


@pytest.mark.parametrize("sizes", [{"keep_last": 30}, {"keep_last": 400, "keep_first": 4}])
def test_memory_is_bounded(sizes):
    cache = regard.KVCache(2, 2, 8, 5, **sizes)
    seen = set()
    for step in range(700):
        cache.append(*tokens(step, 2, 1))
        seen.add(cache.nbytes)
    assert len(cache) == 700
    sinks = sizes.get("keep_first", 0)
    # First tokens, the window, the longest two appends, and two pages, or three with first tokens.
    row = 2 * 13 * 4
    held = sinks + sizes["keep_last"] + 2 + (3 if sinks else 2) * page_bytes(cache) // row
    assert cache.nbytes <= 2 * (held * row + 400)
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


@pytest.mark.parametrize("length", [2, 15, 16])
def test_a_text_may_begin_again_after_its_first_tokens(length):
    """Also where they fill their page. Evicted tokens are 0."""
    sizes = {"keep_last": 5, "keep_first": 2, "page_size": 16}
    again, fresh = (regard.KVCache(2, 2, 8, 5, **sizes) for _ in range(2))
    key, value = tokens(0, 2, 90)
    for part in (slice(0, 80), slice(80, 90)):
        again.append(key[:, :, part], value[:, :, part])
    assert not again.keys[:, :, 16:64].any()
    again.truncate(length)
    fresh.append(key[:, :, :length], value[:, :, :length])
    for step, new in enumerate((20, 1, 40)):
        for cache in (again, fresh):
            cache.append(*tokens(step + 1, 2, new))
        query = normal(step, 2, 4, new, 8, dtype=np.float32)
        assert np.array_equal(again.attend(query), fresh.attend(query))
