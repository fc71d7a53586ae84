"""What a wrong call must do: raise an error of the right type, whose message helps the caller."""

import re

import pytest


def says(*words):
    """Return a pattern for all the words, in any order; numbers and names must be whole words."""
    parts = (rf"(?=.*(?<![\w.]){re.escape(w)}(?!\w))" for w in words)
    return "(?si)^" + "".join(parts)


def check(call, error, parts):
    """Check that the call raises an error of exactly this type, and the parts of its message, which
    are separated by `...`: the argument's name, what is needed, what came, and what to do."""
    with pytest.raises(error, match=says(*parts.split(" ... "))) as raised:
        call()
    assert raised.type is error
    told = str(raised.value)
    if re.search(r" must (?!be (left out|given|passed))", told):
        assert re.search(r"\b(got|since)\b|: ", told), "the message does not tell what came"


def each(table):
    """Return the parametrization of a test by rows of (call or changes, error, parts)."""
    ids = [f"{number}: {row[2]}" for number, row in enumerate(table)]
    return pytest.mark.parametrize(("wrong", "error", "parts"), table, ids=ids)
