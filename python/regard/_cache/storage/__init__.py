"""Where the tokens of caches are: pages in memory or in a file.

These modules are its parts::

    geometry, rows      what never changes of a cache, and the layout of a page; quantize makes
                        integers of 8 bits
    state               the pages of each batch entry, its length, and what has been evicted
    pool                which page is free; its room is in memory_room or in file_room
    ledger              the state in a file, after a header, in a locked_file
    system              what the operating system does for both
"""
