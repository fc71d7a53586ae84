"""Texts come and go: entries are dropped, adopted from other caches, and lose draft tokens."""

import itertools

import numpy as np
import pytest

import regard
from cache_kinds import KINDS, make
from cache_model import Model, assert_answers, normal, packed_tokens, tokens
from file_caches import loaded
from inside_cache import assert_owners_are_right
from messages import says
from reference import assert_same_bits


def assert_alike(cache, model):
    assert cache.batch == len(model.keys)
    assert_answers(cache, model, normal(1, cache.batch, 4, 1, 8).astype("f4"))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_come_and_go(kind, tmp_path):
    """Texts are read by themselves, join, grow and end, as in a server."""
    cache, model = make(kind, tmp_path / "cache")
    waiting = []
    for step in range(12):
        for each, others in ((cache, 0), (model, 1)):
            if step % 3 == 0:
                new = each.fork([-1])
                new.append(*tokens(step, 1, 5 + 20 * (step % 2)))
                waiting.append((new, others))
            counts = [(1, 3)[b == 0] for b in range(len(each.lengths))]
            each.append_ragged(*packed_tokens(100 + step, counts))
        if step % 3 == 2:
            (one, _), (same, _) = waiting.pop(0), waiting.pop(0)
            assert cache.adopt(one) == model.adopt(same)
            assert one.batch == 0
        if step in (4, 8):
            for each in (cache, model):
                each.drop([0, 2] if step == 8 else 1)
        assert_alike(cache, model)
        assert_owners_are_right([cache, *(new for new, others in waiting if not others)])
    cache.close()


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
    model = Model(0, 2, 8, 5, np.dtype("float32"))
    for each in (cache, model):
        text = each.fork([-1, -1])
        text.append(*tokens(0, 2, 30))
        assert each.adopt(text, 1) == 0
        assert each.adopt(text) == 1
    assert_alike(cache, model)
    cache.drop([1, 0, 0])
    assert cache.batch == 0


def test_a_fork_of_some_entries(tmp_path):
    cache, model = make("pages", tmp_path)
    fork, same = cache.fork([1, -1, 1, 0]), model.fork([1, -1, 1, 0])
    for each in (fork, same):
        each.append(*tokens(3, 4, 20))
    for pair in ((cache, model), (fork, same)):
        assert_alike(*pair)
    assert_owners_are_right([cache, fork])


DRAFTS = {
    "all": range(7),
    "none": [],
    "first": [0],
    "last": [6],
    "a path": [0, 2, 5],
    "over a page": [1, 3, 6],
}


@pytest.mark.parametrize("kind", ["growing", "pages", "capacity", "window", "int8", "pages file"])
@pytest.mark.parametrize("name", DRAFTS)
def test_accepted_tokens_of_a_draft(name, kind, tmp_path):
    """Later queries see the accepted tokens after the earlier ones, as if they had been appended by
    themselves."""
    cache, model = make(kind, tmp_path / "cache")
    fork, same = cache.fork(), model.fork()
    for number, counts in enumerate(([7, 0], [7, 7], [1, 7])):
        for each in (cache, model):
            each.append_ragged(*packed_tokens(number, counts))
        for entry, count in enumerate(counts):
            start = int(cache.lengths[entry]) - count
            positions = [start + node for node in DRAFTS[name] if node < count]
            for each in (cache, model):
                each.keep(entry, positions)
            assert_alike(cache, model)
    assert_alike(fork, same)
    assert_owners_are_right([cache, fork])
    for each in (cache, model):
        each.append(*tokens(9, 2, 20))
    assert_alike(cache, model)


def test_a_tree_of_drafts():
    """Guesses for the next two tokens are tried at once, and the accepted ones stay."""
    parents = [-1, 0, 0, 1, 1, 2]  # node 0 has the children 1 and 2, and so on
    path = [0, 2, 5]
    key, value = tokens(0, 1, 40)
    draft = tokens(1, 1, 6)
    query = normal(2, 1, 4, 6, 8)
    cache = regard.KVCache(1, 2, 8, 5, page_size=16)
    cache.append(key, value)
    cache.append(*draft)
    nodes = np.eye(6, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            nodes[node] |= nodes[parent]
    mask = np.concatenate([np.ones((6, 40), bool), nodes], axis=1)
    seen = cache.attend(query, mask, is_causal=False)
    cache.keep(0, [40 + node for node in path])
    alone = regard.KVCache(1, 2, 8, 5, page_size=16)
    alone.append(key, value)
    alone.append(*(part[:, :, path] for part in draft))
    assert_same_bits(cache.keys, alone.keys)
    assert_same_bits(cache.attend(query[:, :, path]), alone.attend(query[:, :, path]))
    np.testing.assert_allclose(seen[:, :, path], alone.attend(query[:, :, path]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_waits_in_a_file(kind, tmp_path):
    """The text comes back bit for bit, and its pages are free while it waits."""
    cache, model = make(kind, tmp_path / "cache")
    before = cache.fork([0]).keys
    used, waiting = cache.nbytes, tmp_path / "waiting"
    cache.save(waiting, 0)
    cache.drop(0)
    model.reorder([1])
    assert_alike(cache, model)
    for each in (cache, model):
        each.append(*tokens(3, 1, 9))
    assert_alike(cache, model)
    assert cache.nbytes <= used
    text = make(kind, tmp_path / "other")[1].fork([0])
    for mmap in (True, False):
        again = type(cache).load(waiting, mmap=mmap)
        assert_same_bits(again.keys, before)
    assert cache.adopt(again) == model.adopt(text) == 1
    assert again.batch == 0
    assert_alike(cache, model)
    assert_same_bits(cache.fork([1]).keys, before)
    for each in (cache, model):
        each.append(*tokens(4, 2, 30))
    assert_alike(cache, model)
    assert_owners_are_right([cache])


def test_an_entry_of_another_cache_within_a_budget(tmp_path):
    """If its pages do not fit, neither cache changes."""
    other, model = make("pages", tmp_path)
    small = regard.KVCache(0, 2, 8, 5, page_size=16, max_bytes=16 * 13 * 2 * 4)
    with pytest.raises(MemoryError, match=says("max_bytes")):
        small.adopt(other)
    assert small.batch == 0
    assert_alike(other, model)
    assert_owners_are_right([small, other])


def test_a_budget():
    """A full pool raises before anything changes, and dropped entries make room."""
    page = 16 * (8 + 5) * 2 * 4
    cache = regard.KVCache(2, 2, 8, 5, page_size=16, max_bytes=4 * page)
    cache.append(*tokens(0, 2, 20))
    model = Model(2, 2, 8, 5, np.dtype("float32"))
    model.append(*tokens(0, 2, 20))
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
    with pytest.raises(MemoryError, match=says("max_bytes")):
        regard.KVCache(2, 2, 8, 5, capacity=64, max_bytes=page)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=says("max_bytes")):
            regard.KVCache(1, 2, 8, max_bytes=wrong)
    with pytest.raises(TypeError, match=says("max_bytes")):
        regard.KVCache(1, 2, 8, max_bytes="4 GB")


def closed():
    cache = regard.KVCache(1, 1, 4)
    fork = cache.fork()
    fork.close()
    return cache, fork


REFUSED = {
    "itself": (lambda c: c.adopt(c), ValueError, says("other", "itself")),
    "other pages": (
        lambda c: c.adopt(regard.KVCache(1, 2, 8, 5, page_size=32)),
        ValueError,
        says("other", "page_size 16, got 32", "fork"),
    ),
    "other layers": (
        lambda c: c.adopt(regard.KVCache(1, 1, 8, 5, page_size=16)),
        ValueError,
        says("other", "kv_heads 2, got 1"),
    ),
    "no cache": (lambda c: c.adopt([1]), TypeError, says("other", "KVCache", "list")),
    "no such entry": (lambda c: c.adopt(c.fork(), 2), ValueError, says("entry", "0", "1", "2")),
    "an entry before": (lambda c: c.adopt(c.fork(), -1), ValueError, says("entry")),
    "half an entry": (lambda c: c.adopt(c.fork(), 0.5), TypeError, says("entry")),
    "of none": (lambda c: c.adopt(c.fork([])), ValueError, says("entry", "none")),
    "a dropped one": (lambda c: c.drop([0, 2]), ValueError, says("entries", "2")),
    "a name": (lambda c: c.drop("first"), TypeError, says("entries")),
    "a table": (lambda c: c.drop([[0]]), ValueError, says("entries", "(1, 1)")),
    "a fork of others": (lambda c: c.fork([0, 5]), ValueError, says("batch_indices", "5")),
    "kept before": (lambda c: c.keep(0, [24]), ValueError, says("positions", "25", "54", "24")),
    "kept after": (lambda c: c.keep(0, [54, 55]), ValueError, says("positions", "25", "54", "55")),
    "kept twice": (lambda c: c.keep(0, [30, 30]), ValueError, says("positions", "increase", "30")),
    "kept of others": (lambda c: c.keep(2, [30]), ValueError, says("entry", "2")),
    "kept halves": (lambda c: c.keep(0, [30.5]), TypeError, says("positions")),
    "kept tables": (lambda c: c.keep(0, [[30]]), ValueError, says("positions", "(1, 1)")),
    "not appended": (
        lambda c: (c.reorder([0, 1]), c.keep(0, [30])),
        ValueError,
        says("keep", "append"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(name, tmp_path):
    call, kind, message = REFUSED[name]
    cache, model = make("pages", tmp_path)
    with pytest.raises(kind, match=message):
        call(cache)
    assert_alike(cache, model)
    assert_owners_are_right([cache])


def test_closed_caches():
    cache, fork = closed()
    with pytest.raises(ValueError, match="closed"):
        cache.adopt(fork)
    with pytest.raises(ValueError, match="closed"):
        fork.adopt(cache)


@pytest.mark.parametrize("kind", KINDS)
def test_orders_of_changes(kind, tmp_path):
    """Appends, drops, adoptions and undos run in every order of three."""
    for number, names in enumerate(itertools.permutations(["append", "drop", "adopt", "undo"], 3)):
        cache, model = make(kind, tmp_path / str(number))
        for name in names:
            for each in (cache, model):
                if name == "append":
                    each.append(*tokens(4, len(each.lengths), 3))
                elif name == "drop":
                    each.drop(0)
                elif name == "undo":
                    each.truncate([int(length) - 1 for length in each.lengths])
                else:
                    new = each.fork([-1])
                    new.append(*tokens(5, 1, 18))
                    each.adopt(new)
        assert_alike(cache, model)
        cache.close()


def test_queries_after_an_unequal_draft(tmp_path):
    """An entry with fewer tokens than queries still needs the positions of its queries."""
    cache, _ = make("pages", tmp_path)
    cache.append(*tokens(1, 2, 3))
    cache.keep(0, [int(cache.lengths[0]) - 1])
    query = normal(2, 2, 4, 3, 8)
    with pytest.raises(ValueError, match=says("query_offset", "[1, 3]")):
        cache.attend(query)
    cache.keep(1, [int(cache.lengths[1]) - 1])
    assert cache.attend(query[:, :, :1]).shape == (2, 4, 1, 5)


def test_nothing_to_keep_of(tmp_path):
    cache, model = make("pages", tmp_path)
    for each in (cache, model):
        each.append_ragged(*packed_tokens(1, [4, 0]))
    with pytest.raises(ValueError, match=says("positions", "no tokens")):
        cache.keep(1, [3])
    cache.keep(1, [])
    assert_alike(cache, model)
