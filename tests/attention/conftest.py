"""Fixtures of more than one file."""

import pytest

from score_functions import C_SOURCE, build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Return the path of a shared library of C_SOURCE."""
    source = tmp_path_factory.mktemp("library") / "functions.c"
    source.write_text(C_SOURCE, encoding="utf-8")
    return build(source)
