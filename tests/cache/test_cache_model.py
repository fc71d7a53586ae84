"""Any sequence of calls: caches and their forks against lists of tokens."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import regard
from cache_model import Model, assert_answers, normal, tokens
from regard._cache.file_table import FileTable


class Caches(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "cache"
        self.pairs, self.in_pages = [], False
        self.steps = 0

    @initialize(
        batch=st.integers(1, 3),
        window=st.none() | st.integers(1, 6),
        sink_tokens=st.integers(0, 3),
        where=st.sampled_from(["memory", "file", "pages", "pages of a file"]),
        dtype=st.sampled_from(["float64", "int8"]),
    )
    def make(self, batch, window, sink_tokens, where, dtype):
        self.in_file, self.in_pages = "file" in where, "pages" in where
        window = None if self.in_pages else window
        sizes = {"window": window, "sink_tokens": sink_tokens if window else 0}
        room = {"path": self.path} if self.in_file else {}
        room |= {"page_size": 16} if self.in_pages else {}
        cache = regard.KVCache(batch, 2, 8, 5, dtype=dtype, **room, **sizes)
        self.pairs.append((cache, Model(batch, 2, 8, 5, np.dtype(dtype), **sizes)))

    def pick(self, data):
        return data.draw(st.sampled_from(self.pairs), label="cache")

    @rule(data=st.data(), new=st.sampled_from([0, 1, 1, 1, 2, 3, 8, 40]), ragged=st.booleans())
    def append(self, data, new, ragged):
        cache, model = self.pick(data)
        self.steps += 1
        batch = len(model.keys)
        counts = st.lists(st.integers(0, new), min_size=batch, max_size=batch)
        lengths = data.draw(counts) if ragged else None
        key, value = tokens(self.steps, batch, new)
        offsets = cache.lengths
        cache.append(key, value, lengths)
        model.append(key, value, lengths)
        query = normal(self.steps, batch, 2, new, 8)
        assert_answers(cache, model, query, offsets=offsets)

    @rule(data=st.data())
    def truncate(self, data):
        cache, model = self.pick(data)
        to = [data.draw(st.integers(0, length)) for length in model.lengths]
        before = cache.lengths.tolist()
        try:
            cache.truncate(to)
        except ValueError:  # its window is gone
            assert model.window is not None
            assert cache.lengths.tolist() == before
            assert max(model.lengths) > model.window + model.sink_tokens
        else:
            model.truncate(to)

    @rule(data=st.data())
    def reorder(self, data):
        cache, model = self.pick(data)
        entry = st.integers(0, len(model.keys) - 1)
        indices = data.draw(st.lists(entry, min_size=1, max_size=4))
        cache.reorder(indices)
        model.reorder(indices)

    @rule(data=st.data())
    def fork(self, data):
        if len(self.pairs) < 4:
            cache, model = self.pick(data)
            self.pairs.append((cache.fork(), model.fork()))

    @rule(data=st.data())
    def drop(self, data):
        if len(self.pairs) > 1:
            cache, _ = self.pairs.pop(data.draw(st.integers(1, len(self.pairs) - 1)))
            cache.close()  # hypothesis may hold what it has drawn

    @rule(mode=st.sampled_from(["r", "r+"]))
    def open_again(self, mode):
        if self.in_file:
            self.pairs[0][0].close()
            cache = regard.KVCache.open(self.path, mode)
            if mode == "r":
                self.pairs.append((cache.fork(), self.pairs[0][1].fork()))
                cache.close()
                cache = regard.KVCache.open(self.path)
            self.pairs[0] = cache, self.pairs[0][1]

    @invariant()
    def answers_are_right(self):
        for cache, model in self.pairs:
            assert_answers(cache, model, normal(7, len(model.keys), 4, 1, 8))

    @invariant()
    def pages_have_as_many_owners_as_tables_say(self):
        states = [cache._content.state for cache, _ in self.pairs] if self.in_pages else []
        for pool in {state.pool for state in states}:
            pool._collect()
            users = [state for state in states if state.pool is pool]
            tables = [state.all_pages() for state in users]
            tables += [s.table.own_pages for s in users if isinstance(s.table, FileTable)]
            owners = np.bincount(np.concatenate(tables), minlength=pool._used)
            assert np.array_equal(owners, pool._owners[: pool._used])
            assert sorted(pool._free) == np.flatnonzero(owners == 0).tolist()

    def teardown(self):
        for cache, _ in self.pairs:
            cache.close()
        self.folder.cleanup()


Caches.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCaches = Caches.TestCase
