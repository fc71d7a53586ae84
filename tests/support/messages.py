"""The required contents of an error message."""

import re


def says(*words):
    """Return a pattern for all the words, in any order; numbers and names must be whole words."""
    parts = (rf"(?=.*(?<![\w.]){re.escape(w)}(?!\w))" for w in words)
    return "(?si)^" + "".join(parts)
