"""Caches of keys and values for texts that grow.

The pages of a cache, and which text has which page, are in C++ (`_core.PageTable`), where each
change happens as a whole or not at all. Calls append and attend to a layer of it
(`_core.LayerPages`)::

    cache, caches   the public classes: one layer, and all layers of a model
    entries         their methods that change texts, in all layers; remove removes tokens from the
                    middle, and prefix_index finds a text with the same beginning
    layer           their methods that append and attend to one layer
    sizes           sizes and lengths
    geometry        checks the arguments of constructors; types has the types of storage
    append          appends to a layer; quantize makes 8-bit and 4-bit numbers of rows
    attend          attends to a layer
    arguments       checks the arguments of calls
    file            saves and loads caches
    paged           attends to the pages of other engines
"""

from regard._cache.cache import KVCache
from regard._cache.caches import KVCaches, LayerCache
from regard._cache.paged import paged_attention
from regard._cache.prefix_index import PrefixIndex

__all__ = ["KVCache", "KVCaches", "LayerCache", "PrefixIndex", "paged_attention"]
