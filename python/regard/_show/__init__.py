"""Text and HTML that shows weights and objects.

These modules are its parts::

    show             weights as a shaded table: in shaded_text and shaded_html, whose cells and
                     shades are in weight_table
    shows_options    what objects show of their options in a line, and as a table in notebooks
    text             characters as they appear in a terminal
"""
