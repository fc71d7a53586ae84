"""Cache of keys and values for texts that grow.

Callers use `cache.KVCache`. It holds a `content.Content`, which consists of a `state` (the pages,
length and evictions of each batch entry) that changes in one assignment, and a `pool` of pages that
forks share::

    cache           the public class; arguments checks the arguments of its calls
    content         appends, truncates, reorders and forks; growth plans the pages of an append
    attend, explain attention to a state; window determines the visible keys
    stored          keys and values as arrays
    file            creates and opens the files of caches

`storage` has the state, the pool, and their pages in memory and in files.
"""

from regard._cache.cache import KVCache

__all__ = ["KVCache"]
