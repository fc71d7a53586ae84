"""Cache of keys and values for texts that grow.

Callers use `cache.KVCache`. It holds a `content.Content`, which consists of a `state` (the pages,
length and evictions of each batch entry) that changes in one assignment, and a `pool` of pages that
forks share::

    cache           the public class; arguments checks the arguments of its calls
    content         appends, truncates, reorders and forks; growth plans the pages of an append
    attend, explain attention to a state; window determines the visible keys
    stored          keys and values as arrays
    pool            the free pages; its room is in memory_room or in file_room
    ledger          the state in a file, after a header, in a locked_file that file creates or opens

`geometry` contains the constants of a cache, `rows` the layout of a page, `quantize` the 8-bit
numbers.
"""

from regard._cache.cache import KVCache

__all__ = ["KVCache"]
