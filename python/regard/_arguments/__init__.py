"""Check and convert the arguments of callers: arrays, numbers and options.

The modules::

    numbers    numbers, flags and names; arrays converts arrays, and foreign reads the arrays of
               other libraries
    options    the options of the attention calls for type checkers, from the table in option_table;
               score_function holds the C function of one of them
    positions  which keys are visible by position; masks, which keys are visible by masks
    keywords   keywords that a call does not accept, with advice from the table other_names.txt
    hints      mistakes that types and shapes do not reveal
"""
