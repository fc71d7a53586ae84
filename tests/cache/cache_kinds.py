"""Every kind of cache, and calls that change a cache, for tests that stop such calls."""

import numpy as np

import regard
from cache_model import Model
from cache_tokens import packed_tokens, tokens

WINDOW = {"keep_last": 20, "keep_first": 3, "page_size": 16}
KINDS = {
    "growing": {},
    "capacity": {"capacity": 900},
    "pages": {"page_size": 16},
    "alike": {"page_size": 16, "are_alike": True},  # entries of one length take shortcuts
    "window": WINDOW,
    "int8": {"dtype": "int8", "page_size": 32},
    "float8": {"dtype": "float8_e4m3fn", "page_size": 32},
    "q4_1": {"dtype": "q4_1", "sizes": (32, 64), "page_size": 32},
    "int8 means": {"dtype": "int8", "page_size": 32, "key_means": np.full((2, 8), 3.0)},
    "values in keys": {"value_from_key": True, "page_size": 16},
    "int8 values in keys": {"value_from_key": True, "dtype": "int8", "page_size": 32},
    "layers": {"layers": 3, "page_size": 16},
    "layers window": {"layers": 2, **WINDOW},
    "growing file": {"path": True},
    "capacity file": {"path": True, "capacity": 900},
    "window file": {"path": True, **WINDOW},
    "int8 file": {"path": True, "dtype": "int8", "page_size": 16, "keep_last": 33},
    "float8 file": {"path": True, "dtype": "float8_e4m3fn", "page_size": 16},
    "layers file": {"path": True, "layers": 3, "page_size": 16},
}


class ValuesInKeys(regard.KVCache):
    """A cache that leaves out the values, which its keys contain."""

    def append(self, key, _value, lengths=None):
        super().append(key, lengths=lengths)

    def append_ragged(self, key, _value, starts):
        super().append_ragged(key, None, starts)


class AllLayers:
    """The caches of several layers as one cache.

    Values of the layers differ by powers of two, which are exact factors of the results. An append
    that is stopped is rolled back.
    """

    def __init__(self, caches):
        self.caches, self.is_float16 = caches, caches.dtype == np.float16

    @classmethod
    def load(cls, path, **options):
        return cls(regard.KVCaches.load(path, **options))

    def __getattr__(self, name):
        """Return sizes, and the methods that change entries of all layers."""
        return getattr(self.caches, name)

    def __len__(self):
        return len(self.caches[0])

    def __repr__(self):
        return repr(self.caches)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _step(self, method, key, value, *rest):
        if self.is_float16:  # in which the smallest numbers have fewer digits
            value = np.asarray(value).astype(np.float16)
        try:
            for layer in [*range(1, len(self.caches)), 0]:  # in an unusual order
                getattr(self.caches[layer], method)(key, np.asarray(value) * 2.0**layer, *rest)
        except BaseException:
            self.caches.rollback()
            raise

    def append(self, key, value, lengths=None):
        self._step("append", key, value, lengths)

    def append_ragged(self, key, value, starts):
        self._step("append_ragged", key, value, starts)

    @staticmethod
    def _alike(found):
        for layer, other in enumerate(found):
            assert np.array_equal(other / 2.0**layer, found[0].astype(other.dtype))
        return found[0]

    @property
    def keys(self):
        found = [cache.keys for cache in self.caches]
        assert all(np.array_equal(other, found[0]) for other in found)
        return found[0]

    @property
    def values(self):
        return self._alike([cache.values for cache in self.caches])

    def attend(self, query, *arguments, return_lse=False, **options):
        found = [
            cache.attend(query, *arguments, return_lse=True, **options) for cache in self.caches
        ]
        assert all(np.array_equal(lse, found[0][1]) for _, lse in found)
        output = self._alike([output for output, _ in found])
        return (output, found[0][1]) if return_lse else output

    def fork(self, *entries):
        return AllLayers(self.caches.fork(*entries))

    def adopt(self, other, entry=0):
        return self.caches.adopt(other.caches, entry)


def new_cache(batch, *sizes, layers=None, **options):
    """Return an empty cache of one or several layers, and its model."""
    model = Model(batch, *sizes, **options)
    if layers is None:
        kind = ValuesInKeys if options.get("value_from_key") else regard.KVCache
        return kind(batch, *sizes, **options), model
    return AllLayers(regard.KVCaches(layers, batch, *sizes, **options)), model


def loaded(cache, path, *, mmap=True):
    """Return a cache after a round trip through a file, whose pages are mapped."""
    cache.save(path)
    again = type(cache).load(path, mmap=mmap)
    cache.close()
    return again


def make(kind, path, batch=2):
    """Return a cache of some tokens and its model. Kinds of files are mapped after the first
    append."""
    options = dict(KINDS[kind])
    in_file, is_alike = options.pop("path", False), options.pop("are_alike", False)
    cache, model = new_cache(batch, 2, *options.pop("sizes", (8, 5)), **options)
    for each in (cache, model):
        each.append(*own_tokens(each, 0, 25), None if is_alike else [25, *[7] * (batch - 1)])
    if in_file:
        cache = loaded(cache, path)
    for each in (cache, model):
        each.append(*own_tokens(each, 1, 30))
    return cache, model


def own_tokens(each, seed, new, **options):
    """Return tokens of the sizes that a cache or a model has."""
    dims = {"head_dim": each.head_dim, "value_dim": each.value_dim}
    return tokens(seed, each.batch, new, **dims, **options)


def token(each, seed=5):
    each.append(*own_tokens(each, seed, 1, dtype=np.float32))


def prompt(each, seed=6):
    each.append(*own_tokens(each, seed, 40), [40 - 9 * b for b in range(each.batch)])


def packed(each, seed=7):
    """Append a different number of tokens to each entry, and none to the third."""
    counts = [(1, 33, 0)[b % 3] for b in range(each.batch)]
    dims = {"head_dim": each.head_dim, "value_dim": each.value_dim}
    each.append_ragged(*packed_tokens(seed, counts, **dims))


def undo(each, seed=None):
    """Take back the last append of `make`, which is possible for any window."""
    shorter = [int(length) - 30 for length in each.lengths]
    each.truncate(shorter[0] if len(set(shorter)) == 1 else shorter)


def beams(each, seed=None):
    each.reorder([0, *range(each.batch - 1)])


def join(each, seed=None):
    each.reorder([*range(1, each.batch), -1])


def drop(each, seed=None):
    each.drop(each.batch - 1 if each.batch > 1 else [])


def adopt(each, seed=8):
    """Let a text that was read by itself join, while there are few texts."""
    if each.batch < 4:
        other = each.fork([-1])
        other.append(*own_tokens(other, seed, 21))
        each.adopt(other)
    else:
        drop(each)


def keep(each, seed=None):
    """Keep some of the tokens that `make` appended last."""
    start = int(each.lengths[0]) - 30
    each.keep(0, [start + 1, start + 4, start + 29])


def remove(each, seed=None):
    """Remove tokens of which a window sees none yet, and some that it will see."""
    each.remove(0, 2 if each.keep_last is None else 47, 50)


CHANGES = {
    change.__name__: change
    for change in (token, prompt, packed, undo, beams, join, drop, adopt, keep, remove)
}
