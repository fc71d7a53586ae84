"""Attention to keys and values that arrive in chunks.

The modules::

    attend          the public function; call implements one call, and reads ahead in a thread
    source, chunks  the kinds of chunks, and how a chunk is read; arrays and masks may be in files
"""
