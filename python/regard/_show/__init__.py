"""Text and HTML representations of weights and objects.

The modules of the package::

    show             weights as a shaded table, written by shaded_text and shaded_html, with the
                     cells and shades of weight_table
    shows_options    the options of objects, in a line or as a table in notebooks
    text             characters as they appear in a terminal
"""
