"""Caches that are saved and loaded."""


def loaded(cache, path, *, mmap=True):
    """Return the content of a cache after a round trip through a file, whose pages are mapped."""
    cache.save(path)
    again = type(cache).load(path, mmap=mmap)
    cache.close()
    return again
