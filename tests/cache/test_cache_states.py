"""Any sequence of calls: caches of every kind, and their forks, against lists of rows.

Each answer has the bits of a call with the text alone, so this one test stands for the order of
appends, pages, forks, beams, windows, files, layers and packed tokens, in any combination.
"""

import contextlib
import itertools
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import regard
from cache_kinds import loaded, new_cache, own_tokens
from cache_model import assert_alike, assert_answers
from cache_tokens import normal, packed_tokens, told
from inside_cache import assert_owners_are_right
from reference import assert_same_bits

FLOATS = ("float32", "float16", "bfloat16", "float64")
QUANTIZED = ("int8", "float8_e4m3fn", "q4_1")
HEADS = 4

OPTIONS = {
    "plain": lambda kv_len, new: {},
    "square": lambda kv_len, new: {"is_causal": False},
    "scores": lambda kv_len, new: {
        "scale": 0.5,
        "softcap": 2.0,
        "alibi_slopes": normal(6, HEADS),
        "sinks": normal(7, HEADS),
    },
    "distances": lambda kv_len, new: {"distance_bias": normal(8, HEADS, 21)},
    "numbers of heads": lambda kv_len, new: {
        "scale": normal(9, HEADS),
        "softcap": [np.inf, 0.5, 1e30, 2.0],
    },
    "bool mask": lambda kv_len, new: {"mask": normal(5, new, kv_len) > 0},
    "float mask": lambda kv_len, new: {"mask": normal(5, HEADS, 1, kv_len)},
    "sparse mask": lambda kv_len, new: {
        "mask": regard.masks.Blocks.from_dense(normal(5, new, kv_len) > 0, block=(16, 16))
    },
    "narrow": lambda kv_len, new: {"window": (2, 0)},
    "wide": lambda kv_len, new: {"window": (60, None)},
    "threads": lambda kv_len, new: {"threads": 2},
}
WINDOWS = ("narrow", "wide")


class Caches(RuleBasedStateMachine):
    dtypes = FLOATS

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.path = Path(folder) / "cache"
        self.stack.callback(regard._core.testing.set_target, None)
        self.pairs, self.seed = [], 0

    @initialize(data=st.data(), batch=st.integers(1, 3))
    def make(self, data, batch):
        regard._core.testing.set_target(data.draw(st.sampled_from(regard.cpu_targets())))
        dtype = data.draw(st.sampled_from(self.dtypes))
        options = {
            "layers": data.draw(st.sampled_from([None, None, 2, 3])),
            "page_size": data.draw(st.sampled_from([16, None, 48])),
            "keep_last": data.draw(st.sampled_from([None, None, 1, 5, 20, 40, 10**12])),
        }
        if options["keep_last"] is None:
            options["capacity"] = data.draw(st.sampled_from([None, 2000]))
        else:
            options["keep_first"] = data.draw(st.sampled_from([0, 1, 3, 17]))
        if dtype == "float8_e4m3fn":  # twice the smallest numbers have other bits
            options["layers"] = None
        sizes = (32, 64) if dtype == "q4_1" else data.draw(st.sampled_from([(8, 5), (24, 16)]))
        self.dtype, self.query_type = dtype, "float64" if dtype == "float64" else "float32"
        self.has_sinks = options.get("keep_first", 0) > 0
        self.pairs.append(new_cache(batch, 2, *sizes, dtype=dtype, **options))

    def pick(self, data):
        return data.draw(st.sampled_from(self.pairs), label="cache")

    def next_seed(self):
        self.seed += 1
        return self.seed

    def counts(self, data, batch, most):
        return data.draw(st.lists(st.integers(0, most), min_size=batch, max_size=batch))

    @rule(
        data=st.data(),
        new=st.sampled_from([1, 1, 1, 2, 8, 40, 40, 0]),
        is_ragged=st.booleans(),
        name=st.sampled_from(list(OPTIONS)),
        given=st.sampled_from(["float32", "float16", "float64"]),
    )
    def append_and_attend(self, data, new, is_ragged, name, given):
        """The new tokens attend as soon as they are there."""
        cache, model = self.pick(data)
        lengths = self.counts(data, model.batch, new) if is_ragged else None
        new_tokens = own_tokens(model, self.next_seed(), new, dtype=given)
        offsets = cache.lengths
        for each in (cache, model):
            each.append(*new_tokens, lengths)
        if self.has_sinks and name in WINDOWS:  # a mask then, of other bits
            return
        options = OPTIONS[name](max(model.lengths), new)
        query = normal(self.seed, model.batch, HEADS, new, model.head_dim, dtype=self.query_type)
        if lengths is None and len({*offsets.tolist()}) == 1 and not name.endswith("mask"):
            assert_answers(cache, model, query, **options)
        assert_answers(cache, model, query, offsets=offsets, **options)

    @rule(
        data=st.data(),
        most=st.sampled_from([1, 3, 40, 70]),
        name=st.sampled_from([name for name in OPTIONS if not name.endswith("mask")]),
    )
    def append_and_attend_packed(self, data, most, name):
        cache, model = self.pick(data)
        counts = self.counts(data, model.batch, most)
        dims = {"head_dim": model.head_dim, "value_dim": model.value_dim}
        key, value, starts = packed_tokens(self.next_seed(), counts, **dims)
        for each in (cache, model):
            each.append_ragged(key, value, starts)
        if not max(model.lengths) or hasattr(cache, "caches"):  # layers attend one by one
            return
        if self.has_sinks and name in WINDOWS:
            return
        options = OPTIONS[name](0, 0)
        query = normal(self.seed, starts[-1], HEADS, model.head_dim, dtype=self.query_type)
        output, lse = cache.attend_ragged(query, starts, return_lse=True, **options)
        for b, (start, end) in enumerate(itertools.pairwise(starts)):
            own = query[start:end].swapaxes(0, 1)
            found = (part[start:end].swapaxes(0, 1) for part in (output, lse))
            assert_same_bits(
                tuple(map(np.ascontiguousarray, found)), tuple(model.answer(b, own, **options))
            )

    @rule(data=st.data())
    def refuse_an_append(self, data):
        """What cannot be stored is refused before anything changes."""
        cache, model = self.pick(data)
        if self.dtype not in ("float16", *QUANTIZED):
            return
        before = told(cache)
        key, value = own_tokens(model, self.next_seed(), 20, dtype="float32")
        value[-1, 0, 3, 4] = 1e6 if self.dtype == "float16" else np.nan
        with np.errstate(over="raise"), pytest.raises((FloatingPointError, ValueError)):
            cache.append(key, value)
        assert told(cache) == before

    @rule(data=st.data(), new=st.sampled_from([1, 40]), layers=st.integers(1, 2))
    def begin_a_step_and_undo_it(self, data, new, layers):
        """Only the layers that have appended see the tokens of a step that is not finished."""
        cache, model = self.pick(data)
        if not hasattr(cache, "caches") or not model.batch:
            return
        caches, before = cache.caches, told(cache)
        lengths = data.draw(st.none() | st.just([1, *[new] * (model.batch - 1)]))
        for layer in [1, 2][: min(layers, len(caches) - 1)]:
            caches[layer].append(*own_tokens(model, self.next_seed(), new), lengths)
        counts = lengths or [new] * model.batch
        after = [n + m for n, m in zip(model.lengths, counts, strict=True)]
        assert caches[1].lengths.tolist() == after
        assert caches[0].lengths.tolist() == caches.lengths.tolist() == model.lengths
        if lengths is None and data.draw(st.booleans()):
            caches[1].truncate(model.lengths)
        else:
            caches.rollback()
        assert told(cache) == before

    @rule(data=st.data(), far=st.booleans())
    def truncate(self, data, far):
        cache, model = self.pick(data)
        place = st.sampled_from([0, 1, 16, 48])  # the ends of pages, also of first tokens
        to = [
            min(length, data.draw(place)) if far else data.draw(st.integers(length // 2, length))
            for length in model.lengths
        ]
        given, before = to, told(cache)
        if data.draw(st.booleans()):  # one number, which leaves shorter entries as they are
            given = data.draw(st.sampled_from([int, np.int64]))(max(to))
            to = [min(length, max(to)) for length in model.lengths]
        try:
            cache.truncate(given)
        except ValueError:  # its window is gone
            assert told(cache) == before
            assert max(model.lengths) > model.keep_last + model.keep_first
        else:
            model.truncate(to)

    @rule(data=st.data(), new=st.sampled_from([1, 1, 2, 40]))
    def undo_an_append(self, data, new):
        """This is possible for any window, whose tokens are still there."""
        cache, model = self.pick(data)
        cache.append(*own_tokens(model, self.next_seed(), new))
        cache.truncate(model.lengths)

    @rule(data=st.data(), new=st.integers(1, 7))
    def keep_some_of_a_draft(self, data, new):
        cache, model = self.pick(data)
        draft = own_tokens(model, self.next_seed(), new)
        counts = self.counts(data, model.batch, new)
        if not any(counts):  # an append of nothing is no append
            return
        for each in (cache, model):
            each.append(*draft, counts)
        entry = data.draw(st.integers(0, model.batch - 1))
        drafted = range(model.before[entry], model.lengths[entry])
        kept = sorted(data.draw(st.sets(st.sampled_from(drafted)))) if drafted else []
        for other in (drafted.start - 1, drafted.stop):
            with pytest.raises(ValueError, match="positions"):
                cache.keep(entry, [other])
        for each in (cache, model):
            each.keep(entry, kept)

    @rule(data=st.data())
    def remove_from_the_middle(self, data):
        cache, model = self.pick(data)
        if not model.batch:
            return
        entry = data.draw(st.integers(0, model.batch - 1))
        place = st.integers(0, model.lengths[entry])
        start, stop = sorted((data.draw(place), data.draw(place)))
        before = told(cache)
        try:
            cache.remove(entry, start, stop)
        except ValueError:  # its window is gone
            assert told(cache) == before
            assert model.lengths[entry] > model.keep_last + model.keep_first
        else:
            model.remove(entry, start, stop)

    @rule(data=st.data())
    def reorder(self, data):
        cache, model = self.pick(data)
        entry = st.integers(-1, model.batch - 1)
        indices = data.draw(st.lists(entry, min_size=1, max_size=4))
        for each in (cache, model):
            each.reorder(indices)

    @rule(data=st.data())
    def drop_an_entry(self, data):
        cache, model = self.pick(data)
        if model.batch > 1:
            entry = data.draw(st.integers(0, model.batch - 1))
            for each in (cache, model):
                each.drop(entry)

    @rule(data=st.data())
    def fork(self, data):
        if len(self.pairs) < 3:
            cache, model = self.pick(data)
            some = st.lists(st.integers(-1, model.batch - 1), min_size=1, max_size=4)
            indices = data.draw(st.none() | some)
            self.pairs.append((cache.fork(indices), model.fork(indices)))

    @rule(data=st.data())
    def close_a_fork(self, data):
        if len(self.pairs) > 1:
            cache, _ = self.pairs.pop(data.draw(st.integers(0, len(self.pairs) - 1)))
            cache.close()  # hypothesis may keep what it has drawn

    @rule(data=st.data())
    def adopt(self, data):
        """Entries of forks move; entries of other caches are copied."""
        (cache, model), (other, same) = self.pick(data), self.pick(data)
        if cache is not other and same.batch > 1 and model.batch < 5:
            entry = data.draw(st.integers(0, same.batch - 1))
            assert cache.adopt(other, entry) == model.adopt(same, entry)

    @rule(data=st.data(), mmap=st.booleans())
    def save_and_load(self, data, mmap):
        number = data.draw(st.integers(0, len(self.pairs) - 1))
        cache, model = self.pairs[number]
        self.pairs[number] = loaded(cache, self.path, mmap=mmap), model

    @rule(data=st.data())
    def wait_in_a_file(self, data):
        cache, model = self.pick(data)
        cache.save(self.path, 0)
        text = model.fork([0])
        for each in (cache, model):
            each.drop(0)
        again = type(cache).load(self.path)
        assert cache.adopt(again) == model.adopt(text)
        again.close()

    @invariant()
    def every_text_is_as_it_is_alone(self):
        for cache, model in self.pairs:
            assert_alike(cache, model)

    @invariant()
    def pages_have_as_many_owners_as_tables_say(self):
        assert_owners_are_right([cache for cache, _ in self.pairs])

    def teardown(self):
        for cache, _ in self.pairs:
            cache.close()
        self.stack.close()


class QuantizedCaches(Caches):
    dtypes = QUANTIZED


# Each failure is repeated by the next run; to shrink it would take minutes.
LIMITS = {"derandomize": True, "deadline": None, "database": None, "phases": [Phase.generate]}
for machine, examples in ((Caches, 60), (QuantizedCaches, 40)):
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=20, **LIMITS)
TestCaches = Caches.TestCase
TestQuantizedCaches = QuantizedCaches.TestCase
