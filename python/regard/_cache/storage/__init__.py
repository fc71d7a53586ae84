"""Storage of the tokens of caches, in pages in memory or in a file.

The modules are::

    geometry, rows      the constants of a cache, and the layout of a page; quantize makes 8-bit
                        integers
    state               the pages, length and evictions of each batch entry
    pool                the free pages; its room is in memory_room or in file_room
    ledger              the state in a file, after a header, in a locked_file
    system              operating system calls
"""
