"""Caches of keys and values for texts that grow.

`cache.KVCache` stores one layer, and `caches.KVCaches` all layers of a model. Both hold a
`content.Content`, which consists of a `state` (the pages, length and evictions of each batch entry)
that changes in one assignment, and a `pool` of pages that forks share::

    cache, caches   the public classes; created checks the arguments of their constructors
    storing         their methods that append to a layer
    attending       their methods that attend to a layer
    entries         their methods that change texts, in all layers
    opening, sizes  their members for files, sizes and lengths
    arguments       checks the arguments of calls
    layer           appends to the pages of a layer; a step ends when all layers have appended
    content         truncates, reorders and forks; growth plans the pages of an append
    attend, explain attention to a state; window determines the visible keys
    paged           attention to the pages of other engines
    stored          keys and values as arrays
    file, preempt   files of caches and of preempted texts

`storage` contains the state, the pool, and their pages in memory and in files.
"""

from regard._cache.cache import KVCache
from regard._cache.caches import KVCaches, LayerCache
from regard._cache.paged import paged_attention

__all__ = ["KVCache", "KVCaches", "LayerCache", "paged_attention"]
