"""Recordings of attention: the queries, keys, masks and options of many layers.

The modules::

    layer       one recorded call, and its tokens
    recording   the sequence of layers, and its methods
    selection   the layers that numbers, slices and names select
    given       how other calls accept recordings in place of query and key
    file        the file that holds a recording
"""
