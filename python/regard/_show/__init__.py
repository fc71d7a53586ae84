"""Text and HTML representations of weights and objects, and what all pictures of weights share.

The modules of the package::

    show             weights as a shaded table
    weights          weights that callers pass, the head to show, and blocks that become pixels
    labels           tokens of queries and keys, names of layers and heads
    colors           colors of weights and differences
    shows_options    the options of objects, in a line or as a table in notebooks
    text             characters as they appear in a terminal, and weights as rows of text
"""
