"""Test the options of attention to a cache, and caches that are empty or unequal."""

import numpy as np
import pytest

import regard
from cache_kinds import new_cache
from cache_model import assert_answers, normal, tokens
from element_types import each_in_one_type
from reference import assert_same_bits

sdpa = regard.scaled_dot_product_attention


OPTIONS = {
    "plain": {},
    "all": {"is_causal": False},
    "offset": {"query_offset": 7},
    "offsets": {"query_offset": [3, 20]},
    "window": {"window": (5, 2), "is_causal": False},
    "bool mask": {"mask": normal(5, 2, 6, 4, 30) > 0},
    "float mask": {"mask": normal(5, 4, 30)},
    "scores": {"scale": 0.5, "softcap": 2.0, "alibi_slopes": normal(6, 6), "sinks": normal(7, 6)},
    "distances": {"distance_bias": normal(8, 6, 21), "query_offset": [3, 20]},
    "numbers of heads": {"scale": normal(9, 6), "softcap": [np.inf, 0.5, 1.0, 2.0, 1e30, np.inf]},
    "numbers of entries": {"scale": normal(9, 2, 6), "distance_bias": normal(8, 2, 1, 7)},
    "everything": {"return_weights": True, "return_lse": True, "threads": 2},
}


@each_in_one_type(list(OPTIONS), "storage")
def test_every_option_of_the_call(case, storage, target):
    options = OPTIONS[case]
    rows = [rows.astype(storage) for rows in tokens(0, 2, 30)]
    query = normal(1, 2, 6, 4, 8).astype(storage)
    want = sdpa(query, *rows, **{"query_offset": 26, "is_causal": True} | options)
    for page_size in (None, 16):
        cache = regard.KVCache(2, 2, 8, 5, dtype=storage, page_size=page_size)
        cache.append(*rows)
        assert_same_bits(cache.attend(query, **options), want)
    if not options.keys() & {"return_weights"}:
        out = np.full_like(want, 9)
        assert cache.attend(query, **options, out=out) is out
        assert_same_bits(out, want)


@pytest.mark.parametrize("window", [None, 3])
def test_an_empty_cache_is_not_attended_to(window):
    cache = regard.KVCache(2, 2, 8, 5, keep_last=window)
    for step in range(2):
        for call in (cache.attend, cache.explain):
            for options in ({}, {"query_offset": 0}):
                with pytest.raises(ValueError, match="cache is empty"):
                    call(normal(0, 2, 4, 3, 8), **options)
        assert cache.attend(normal(0, 2, 4, 0, 8)).shape == (2, 4, 0, 5)
        assert (len(cache), bool(cache), cache.keys.shape) == (0, False, (2, 2, 0, 8))
        cache.append(*tokens(0, 2, 4 * step))
        cache.truncate(0)


RAGGED = [
    # appends, number of queries, whether their positions are clear
    ([[5, 3]], 1, True),
    ([[5, 0]], 1, True),
    ([[5, 3]], 3, True),
    ([[5, 3]], 4, False),
    ([[5, 3]], 5, False),
    ([[5, 0]], 2, False),
    ([[5, 3], [1, 1]], 5, True),
    ([[4, 4], [2, 0]], 2, False),
    ([[2, 0], [4, 4]], 4, True),
]


@pytest.mark.parametrize("page_size", [None, 16])
@pytest.mark.parametrize(("appends", "q_len", "is_clear"), RAGGED)
def test_queries_of_an_append_with_unequal_lengths_need_an_offset(
    appends, q_len, is_clear, page_size
):
    cache, model = new_cache(2, 2, 8, 5, page_size=page_size)
    for step, counts in enumerate(appends):
        offset = cache.lengths
        for each in (cache, model):
            each.append(*tokens(step, 2, max(counts)), counts)
    query = normal(0, 2, 4, q_len, 8)
    if is_clear:
        assert_answers(cache, model, query)
    else:
        for call in (cache.attend, cache.explain):
            with pytest.raises(ValueError, match="query_offset must be given"):
                call(query)
        same = cache.fork()
        same.reorder([0, 0])  # the entry that got all of its tokens, twice
        same.attend(query)
        cache.truncate(cache.lengths)  # specifies where the tokens end
        cache.attend(query)
    assert_answers(cache, model, query, offsets=offset)


def test_stored_rows_are_copies_with_0_for_evicted_tokens():
    cache = regard.KVCache(1, 2, 8, 5, keep_last=20, keep_first=3, page_size=16)
    key, _ = tokens(0, 1, 100, dtype=np.float32)
    for start in range(0, 100, 10):
        cache.append(*(rows[:, :, start : start + 10] for rows in tokens(0, 1, 100)))
    found = cache.keys
    evicted = np.arange(100)[(np.arange(100) >= 16) & (np.arange(100) < 64)]
    key[:, :, evicted] = 0
    assert_same_bits(found, key)
    found[...] = 9
    assert_same_bits(cache.keys, key)
