"""Test any sequence of calls: caches and their forks against lists of tokens."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import regard
from cache_model import Model, assert_answers, normal, tokens
from file_caches import loaded
from inside_cache import assert_owners_are_right


class Caches(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "cache"
        self.pairs = []
        self.steps = 0

    @initialize(
        batch=st.integers(1, 3),
        keep_last=st.none() | st.integers(1, 40),
        keep_first=st.sampled_from([0, 0, 1, 3, 17]),
        page_size=st.sampled_from([None, 16, 32]),
        capacity=st.none() | st.just(2000),
        in_file=st.booleans(),
        dtype=st.sampled_from(["float64", "int8"]),
    )
    def make(self, batch, keep_last, keep_first, page_size, capacity, in_file, dtype):
        self.in_file = in_file
        sizes = {"keep_last": keep_last, "keep_first": keep_first if keep_last else 0}
        room = {"page_size": page_size, "capacity": capacity}
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
            assert model.keep_last is not None
            assert cache.lengths.tolist() == before
            assert max(model.lengths) > model.keep_last + model.keep_first
        else:
            model.truncate(to)

    @rule(data=st.data())
    def reorder(self, data):
        cache, model = self.pick(data)
        entry = st.integers(-1, len(model.keys) - 1)
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
            cache.close()  # hypothesis may keep what it has drawn

    @rule(data=st.data(), mmap=st.booleans())
    def save_and_load(self, data, mmap):
        if self.in_file:
            number = data.draw(st.integers(0, len(self.pairs) - 1))
            cache, model = self.pairs[number]
            self.pairs[number] = loaded(cache, self.path, mmap=mmap), model

    @rule(data=st.data())
    def adopt(self, data):
        """Entries of forks move; entries of other caches are copied."""
        (cache, model), (other, same) = self.pick(data), self.pick(data)
        if cache is not other and other.batch > 1 and cache.batch < 5:
            entry = data.draw(st.integers(0, other.batch - 1))
            assert cache.adopt(other, entry) == model.adopt(same, entry)

    @invariant()
    def answers_are_right(self):
        for cache, model in self.pairs:
            assert_answers(cache, model, normal(7, len(model.keys), 4, 1, 8))

    @invariant()
    def stored_tokens_can_be_read(self):
        for cache, model in self.pairs:
            for got, own in zip((cache.keys, cache.values), model.held(), strict=True):
                assert got.shape == own.shape
                for b, length in enumerate(model.lengths):
                    shown = slice(max(0, length - (model.keep_last or length)), length)
                    for seen in (slice(0, min(model.keep_first, length)), shown):
                        np.testing.assert_allclose(got[b][:, seen], own[b][:, seen], 1e-5, 1e-5)
                    assert not got[b][:, length:].any()

    @invariant()
    def pages_have_as_many_owners_as_tables_say(self):
        assert_owners_are_right([cache for cache, _ in self.pairs])

    def teardown(self):
        for cache, _ in self.pairs:
            cache.close()
        self.folder.cleanup()


Caches.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCaches = Caches.TestCase
