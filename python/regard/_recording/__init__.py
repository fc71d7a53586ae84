"""Recordings of attention: the queries, keys, masks and options of many layers.

The modules::

    layer       one recorded call, and its tokens
    recording   the sequence of them, and what can be done with it
    selection   which layers are meant by numbers, slices and names
    given       how other calls accept recordings in place of query and key
    file        the file that holds a recording
"""
