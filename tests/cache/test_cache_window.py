"""A cache with a window answers as one call with all keys and a mask, in memory that stays."""

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, tokens

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


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("window", "sink_tokens", "appends"), CASES)
def test_answers_are_those_of_a_mask(window, sink_tokens, appends, options, dtype, target):
    sizes = {"window": window, "sink_tokens": sink_tokens}
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, dtype, **sizes)
    for step, new in enumerate(appends):
        key, value = tokens(step, 2, new)
        cache.append(key, value)
        model.append(key, value)
        assert_answers(cache, model, normal(step, 2, 4, new, 8, dtype=dtype), **options)
        assert cache.nbytes <= 2 * 2 * 13 * dtype.itemsize * max(
            16, sink_tokens + 2 * (window + new)
        )


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 9])
def test_queries_anywhere_with_a_mask(length, target):
    """Before the sink tokens are there too, and beyond all keys."""
    sizes = {"window": 3, "sink_tokens": 4}
    cache = regard.KVCache(2, 2, 8, 5, **sizes)
    model = Model(2, 2, 8, 5, np.float32, **sizes)
    key, value = tokens(0, 2, length)
    cache.append(key, value)
    model.append(key, value)
    mask = normal(1, 2, length) > 0
    for offset in (max(length - 2, 0), length, length + 3, 40):
        query = normal(2, 2, 4, 2, 8, dtype=np.float32)
        assert_answers(cache, model, query, mask=mask, query_offset=offset)


@pytest.mark.parametrize(("window", "sink_tokens", "appends"), CASES)
def test_types(window, sink_tokens, appends, half, target):
    """What is stored in 16 bits is rounded once, and not again by the join."""
    sizes = {"window": window, "sink_tokens": sink_tokens}
    cache = regard.KVCache(1, 2, 8, 5, dtype=half, **sizes)
    model = Model(1, 2, 8, 5, half, **sizes)
    for step, new in enumerate(appends):
        key, value = tokens(step, 1, new)
        cache.append(key, value)
        model.append(key, value)
        for kind in (half, np.float32):
            assert_answers(cache, model, normal(step, 1, 4, new, 8).astype(kind))


@pytest.mark.parametrize("sink_tokens", [0, 1, 6])
@pytest.mark.parametrize("window", [1, 4, 9])
def test_ragged(window, sink_tokens, dtype, target):
    sizes = {"window": window, "sink_tokens": sink_tokens}
    cache = regard.KVCache(3, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(3, 2, 8, 5, dtype, **sizes)
    random = np.random.default_rng(window * 10 + sink_tokens)
    for step in range(25):
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


def test_what_is_evicted_is_refused_and_can_be_asked_for_in_time():
    cache = regard.KVCache(1, 1, 4, window=4, sink_tokens=1)
    one = np.ones((1, 1, 4))
    for _ in range(20):
        cache.append(one, one)
    cache.attend(np.ones((1, 2, 4)))  # the last append can be undone, and so the token before it
    with pytest.raises(ValueError, match=r"position 17 of .* 14 on, .* 15 are evicted"):
        cache.attend(np.ones((1, 3, 4)))
    cache.attend(np.ones((1, 3, 4)), window=(1, 0))
    cache.append(np.ones((1, 3, 4)), np.ones((1, 3, 4)))
    cache.attend(np.ones((1, 3, 4)))


@pytest.mark.parametrize("sink_tokens", [0, 2])
def test_the_last_append_can_be_undone(sink_tokens, dtype):
    sizes = {"window": 5, "sink_tokens": sink_tokens}
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, **sizes)
    model = Model(2, 2, 8, 5, dtype, **sizes)
    for step, new in enumerate((9, 1, 1, 8, 3, 1, 1, 1, 1, 1, 1)):
        for wrong in (1, 0):
            cache.append(*tokens(2 * step + wrong, 2, new))
            if wrong:
                cache.truncate(len(cache) - new)
        model.append(*tokens(2 * step, 2, new))
        assert_answers(cache, model, normal(step, 2, 4, 1, 8, dtype=dtype))
    with pytest.raises(ValueError, match="length must be at least"):
        cache.truncate(len(cache) - (cache._content.room - sink_tokens - 5) - 1)
    assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=dtype))
    cache.truncate(sink_tokens)
    model.truncate([sink_tokens] * 2)
    cache.append(*tokens(0, 2, 8))
    model.append(*tokens(0, 2, 8))
    assert_answers(cache, model, normal(0, 2, 4, 8, 8, dtype=dtype))


def test_capacity_holds_the_ring(dtype):
    cache = regard.KVCache(2, 2, 8, 5, dtype=dtype, window=5, sink_tokens=2, capacity=10)
    model = Model(2, 2, 8, 5, dtype, window=5, sink_tokens=2)
    room = cache.nbytes
    for step, new in enumerate((10, 3, 1, 2, 3, 3, 3)):
        key, value = tokens(step, 2, new)
        cache.append(key, value)
        model.append(key, value)
        assert_answers(cache, model, normal(step, 2, 4, new, 8, dtype=dtype))
        assert cache.nbytes == room
    with pytest.raises(ValueError, match="at most 3 new tokens at once, got 4"):
        cache.append(*tokens(0, 2, 4))
    assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=dtype))


@pytest.mark.parametrize("sink_tokens", [0, 2])
def test_nan_goes_with_its_token(sink_tokens, dtype, target):
    """Evicted, truncated or padding: what is not seen changes nothing; what is seen shows."""
    cache = regard.KVCache(1, 2, 8, 5, dtype=dtype, window=4, sink_tokens=sink_tokens)
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
