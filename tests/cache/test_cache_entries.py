"""Test caches without entries, limits of memory, and drafts of unequal lengths."""

import numpy as np
import pytest

import regard
from cache_kinds import loaded, new_cache
from cache_model import Model, assert_alike, packed_tokens, tokens
from inside_cache import assert_owners_are_right
from messages import says


@pytest.mark.parametrize("in_file", [False, True])
def test_no_entries(in_file, tmp_path):
    cache = regard.KVCache(0, 2, 8, 5)
    assert (cache.batch, len(cache), cache.lengths.tolist(), cache.nbytes) == (0, 0, [], 0)
    assert cache.keys.shape == (0, 2, 0, 8)
    cache.append(np.ones((0, 2, 3, 8)), np.ones((0, 2, 3, 5)))
    cache.append_ragged(np.ones((0, 2, 8)), np.ones((0, 2, 5)), [0])
    assert len(cache) == 0
    assert cache.attend(np.ones((0, 4, 3, 8))).shape == (0, 4, 3, 5)
    assert cache.attend_ragged(np.ones((0, 4, 8)), [0]).shape == (0, 4, 5)
    assert cache.explain(np.ones((0, 4, 3, 8))).flops == 0
    cache.truncate(0)
    cache.reorder([])
    if in_file:
        cache = loaded(cache, tmp_path / "cache")
        assert cache.lengths.tolist() == []
    model = Model(0, 2, 8, 5)
    for each in (cache, model):
        text = each.fork([-1, -1])
        text.append(*tokens(0, 2, 30))
        assert each.adopt(text, 1) == 0
        assert each.adopt(text) == 1
    assert_alike(cache, model)
    cache.drop([1, 0, 0])
    assert cache.batch == 0


def test_a_budget():
    """A full pool raises before anything changes, and dropped entries make room."""
    page = 16 * (8 + 5) * 2 * 4
    cache, model = new_cache(2, 2, 8, 5, page_size=16, max_bytes=4 * page)
    for each in (cache, model):
        each.append(*tokens(0, 2, 20))
    fork = cache.fork()
    for refused in (
        lambda: cache.append(*tokens(1, 2, 20)),
        lambda: fork.append(*tokens(1, 2, 1)),
        lambda: cache.append_ragged(*packed_tokens(1, [13, 0])),
    ):
        with pytest.raises(MemoryError, match=says("max_bytes", "pages")):
            refused()
        for each in (cache, fork):
            assert_alike(each, model)
    fork.close()
    for each in (cache, model):
        each.drop(0)
        each.append(*tokens(2, 1, 44))
    assert_alike(cache, model)
    assert_owners_are_right([cache])
    small = regard.KVCache(0, 2, 8, 5, page_size=16, max_bytes=page)
    with pytest.raises(MemoryError, match=says("max_bytes")):  # and neither cache changes
        small.adopt(cache)
    assert small.batch == 0
    assert_alike(cache, model)
    assert_owners_are_right([small, cache])
