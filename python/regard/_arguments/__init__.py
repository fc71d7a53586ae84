"""What callers pass: arrays, numbers and options, checked and converted.

These modules are its parts::

    numbers    numbers, flags and names; arrays converts arrays, and foreign reads those of other
               libraries, of which device tells where they are
    options    the options of the attention calls
    keywords   keywords of other libraries, and advice for those that a call does not have
    hints      mistakes that types and shapes do not reveal
"""
