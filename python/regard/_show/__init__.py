"""Text and HTML representations of weights and objects, and what all pictures of weights share.

The modules of the package::

    show             weights as a shaded table, with the cells and shades of weight_table
    weights          weights that callers pass, and the head to show
    labels           tokens of queries and keys, names of layers and heads
    pooling          blocks of weights that become pixels
    colors           colors of weights and differences
    shows_options    the options of objects, in a line or as a table in notebooks
    text             characters as they appear in a terminal
"""
