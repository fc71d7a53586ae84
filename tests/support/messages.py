"""What an error message must say."""

import re


def says(*words):
    """A pattern for all the words, in any order; numbers and names must stand alone."""
    parts = (rf"(?=.*(?<![\w.]){re.escape(w)}(?!\w))" for w in words)
    return "(?si)^" + "".join(parts)
