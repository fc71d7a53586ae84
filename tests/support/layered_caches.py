"""The caches of several layers as one cache, for tests of a cache with one layer."""

import numpy as np

import regard


class AllLayers:
    """Append the same keys to all layers, and values that differ by exact factors.

    Layers return the same results, up to the factor. A stopped append is rolled back.
    """

    def __init__(self, caches):
        self.caches = caches

    @classmethod
    def made(cls, layers, *sizes, **options):
        return cls(regard.KVCaches(layers, *sizes, **options))

    @classmethod
    def load(cls, path, **options):
        return cls(regard.KVCaches.load(path, **options))

    @property
    def _layer(self):
        return self.caches[0]._layer

    def __getattr__(self, name):
        """Return the methods that change entries of all layers, and sizes."""
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
        value = np.asarray(value)
        layers = range(len(self.caches))
        try:
            for layer in [*layers[1:], 0]:  # in an unusual order
                getattr(self.caches[layer], method)(key, value * 2.0**layer, *rest)
        except BaseException:
            self.caches.rollback()
            raise

    def append(self, key, value, lengths=None):
        self._step("append", key, value, lengths)

    def append_ragged(self, key, value, starts):
        self._step("append_ragged", key, value, starts)

    def _alike(self, found):
        """Return the result of the first layer, after checking that the others are the same times
        their factors."""
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

    def attend(self, query, **options):
        found = [cache.attend(query, **options) for cache in self.caches]
        if not isinstance(found[0], tuple):
            return self._alike(found)
        assert all(np.array_equal(each[-1], found[0][-1]) for each in found)
        return (self._alike([each[0] for each in found]), *found[0][1:])

    def fork(self, *entries):
        return AllLayers(self.caches.fork(*entries))

    def adopt(self, other, entry=0):
        return self.caches.adopt(other.caches, entry)
