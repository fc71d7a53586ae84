"""The only access of tests to a cache's internals: its pages, their owners and their locations."""

import numpy as np


def taken(cache):
    """Return how many pages of the cache's pools have an owner."""
    pools = range(len(cache._pages.page_bytes))
    return sum(np.count_nonzero(cache._pages.owners(pool)) for pool in pools)


def assert_owners_are_right(caches):
    """Check that each pool counts as many owners as its caches have; these must be all caches."""
    counted = []
    for cache in caches:
        if cache._pages.is_closed or any(one.shares_pages(cache._pages) for one in counted):
            continue
        counted.append(cache._pages)
        members = [one._pages for one in caches if not one._pages.is_closed]
        members = [pages for pages in members if pages.shares_pages(cache._pages)]
        for pool, (page_size, _, _) in enumerate(cache._geometry.pools):
            owners = cache._pages.owners(pool)
            held = [held_pages(pages, pool, page_size) for pages in members]
            expected = np.bincount(np.concatenate(held), minlength=len(owners))
            assert np.array_equal(owners, expected)


def caches_of(index):
    """Return the caches that a prefix index holds."""
    return [index._nothing, *index._texts.values()]


def held_pages(pages, pool, page_size):
    table = pages.table(pool)
    columns = -(-pages.lengths // page_size) - pages.evicted(pool)
    return table[np.arange(table.shape[1]) < columns[:, None]]


def table_of(cache):
    """Return the table of pages, (batch, columns)."""
    return cache._pages.table(0)


def arrays_of(cache):
    """Return keys, values and, with fewer bits, scales, in pages."""
    return cache._layer.arrays


def stored_rows(cache, entry=0):
    """Return the stored rows of an entry without a window: arrays of shape (kv_heads, length,
    ...)."""
    length, table = int(cache.lengths[entry]), table_of(cache)
    found = []
    for array in arrays_of(cache):
        pages = np.moveaxis(array[table[entry]], 1, 0)
        found.append(pages.reshape(pages.shape[0], -1, *pages.shape[3:])[:, :length])
    return found


def page_bytes(cache):
    """Return the bytes of a page."""
    return int(cache._pages.page_bytes.sum())
