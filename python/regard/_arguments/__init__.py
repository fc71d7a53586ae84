"""Check and convert the arguments of callers: arrays, numbers and options.

These modules are its parts::

    numbers    numbers, flags and names; arrays converts arrays, foreign reads the arrays of other
               libraries, and device finds out which device they are on
    options    the options of the attention calls
    keywords   keywords of other libraries, and advice for keywords that a call does not accept
    hints      mistakes that types and shapes do not reveal
"""
