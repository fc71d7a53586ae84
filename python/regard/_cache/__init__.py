"""Keys and values that stay while a text grows.

Callers see `cache.KVCache`, which is a `view.CacheView` that can be changed. What it holds is a
`content.Content`: a `state` (the pages of each batch entry, its length, what has been evicted) that
changes in one assignment, and a `pool` of pages that forks share::

    cache, view     what callers call; arguments checks what they pass
    content         appends, truncates, reorders, forks; growth plans which pages that takes
    attend, explain attention to a state, with window choosing what a query sees
    pool            which page is free; its room is in memory_room or in file_room
    ledger          the state in a file, after a header, in a locked_file that file makes or opens

`geometry` has what never changes, `rows` the layout of a page, `quantize` the numbers in 8 bits.
"""

from regard._cache.cache import KVCache

__all__ = ["KVCache"]
