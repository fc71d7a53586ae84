"""The only access of tests to a cache's internals: its pages, their owners and their locations."""

import numpy as np


def pool_of(cache):
    """Return the pool, which a cache shares with its forks."""
    return cache._content.pool


def taken(cache):
    """Return how many pages of the cache's pool have an owner."""
    pool = pool_of(cache)
    with pool.lock:
        pool.begin()
        pool.end()
    return pool.used - len(pool._free)


def assert_owners_are_right(caches):
    """Check that each pool counts as many owners as its caches have; these must be all caches."""
    for pool in {pool_of(cache) for cache in caches}:
        with pool.lock:
            pool.begin()
            owners = np.bincount(pool._held_pages(), minlength=pool.used)
            pool.end()
        assert np.array_equal(owners, pool._owners[: pool.used])
        assert sorted(pool._free) == np.flatnonzero(owners == 0).tolist()


def table_of(cache):
    """Return the table of pages, (batch, columns)."""
    return cache._content.state.pages


def arrays_of(cache):
    """Return keys, values and, with int8, scales, in pages."""
    return cache._layer.rows.arrays


def stored_rows(cache, entry=0):
    """Return the stored rows of an entry without a window: arrays of shape (kv_heads, length,
    ...)."""
    state = cache._content.state
    length = int(cache.lengths[entry])
    found = []
    for array in arrays_of(cache):
        pages = np.moveaxis(array[state.pages[entry]], 1, 0)
        found.append(pages.reshape(pages.shape[0], -1, *pages.shape[3:])[:, :length])
    return found


def page_bytes(cache):
    """Return the bytes of a page."""
    return pool_of(cache).room.layout.stride


def ledger_of(cache):
    """Return the ledger of a cache's file."""
    return pool_of(cache).ledger
