"""Attention to keys and values that arrive in chunks.

The modules::

    attend          the public function; call implements one call
    source, chunks  the kinds of chunks, and how a chunk is read; arrays and masks may be in files
    positions       checks of positions if the number of keys is unknown
    reader          the thread that reads ahead
    order           the order in which the states of chunks are merged
"""
