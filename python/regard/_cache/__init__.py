"""Keys and values that stay while a text grows.

``cache.KVCache`` is what callers see, on ``readable``, ``arguments``, ``attend`` and
``explain``, with ``window`` and ``stretches`` for a ring of slots. It has one of two contents,
whose ``rows`` are stored as ``geometry`` says, ``quantise`` if in 8 bits::

    _content    one stretch of slots for each entry     _slots        in memory
                                                        _file_slots   in a file
    _paged      pages from a _pool                      _memory_pool  in memory
                                                        _file_pool    in a file
                by a _page_table, as _page_state says   _file_table   in the same file
                and _page_writing fills them

``file`` makes and opens files, which are each a ``locked_file`` that begins with a ``header``.
"""

from regard._cache.cache import KVCache

__all__ = ["KVCache"]
