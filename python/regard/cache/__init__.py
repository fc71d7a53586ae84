"""Keys and values that stay while a text grows.

``_cache.KVCache`` is what callers see, on ``_readable``, ``_arguments``, ``_attend`` and
``_explain``, with ``_window`` and ``_stretches`` for a ring of slots. It has one of two contents,
whose ``_rows`` are stored as ``_geometry`` says, ``_quantise`` if in 8 bits::

    _content    one stretch of slots for each entry     _slots        in memory
                                                        _file_slots   in a file
    _paged      pages from a _pool                      _memory_pool  in memory
                                                        _file_pool    in a file
                by a _page_table, as _page_state says   _file_table   in the same file
                and _page_writing fills them

``_file`` makes and opens files, which are each a ``_locked_file`` that begins with a ``_header``.
"""

from regard.cache._cache import KVCache

__all__ = ["KVCache"]
