"""Attention to keys and values that come in chunks.

These modules are its parts::

    attend          the function that callers call; call is one call of it
    source, chunks  what chunks may be, and how one is read; arrays and masks may lie in files
    positions       what absolute positions are in a chunk, and which keys can be seen at all
    reader          the thread that reads ahead
    order           in which the states of chunks are merged
"""
