"""The types that the tests' fixtures go through, and tables in which each case has one type."""

import numpy as np
import pytest

TYPES = {
    "dtype": ["float32", "float64"],
    "half": ["float16", "bfloat16"],
    "single_or_half": ["float32", "float16", "bfloat16"],
    "storage": ["float32", "float64", "float16", "bfloat16"],
}


def type_named(name):
    """Return a NumPy dtype; skip the test if bfloat16 is not installed."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def each_in_one_type(cases, fixture, quick=1):
    """Parametrize a test by `case` and, for each case, one of the types of `fixture` in rotation.

    Every type meets a share of the cases on every target. The full product of cases, types and
    targets shows nothing more if the code under test is one template for all types, and takes two
    to four times as long. One case of every `quick` is a quick test, and the others are slow.
    """
    types = TYPES[fixture]
    pairs = []
    for number, case in enumerate(cases):
        # Shift by one in each round, since tables often alternate with their own period.
        name = types[(number + number // len(types)) % len(types)]
        marks = [pytest.mark.slow] if number % quick else []
        pairs.append(pytest.param(case, name, id=f"{_name(case)}-{name}", marks=marks))
    return pytest.mark.parametrize(("case", fixture), pairs, indirect=[fixture])


def _name(case):
    if isinstance(case, tuple):
        return "-".join(map(str, case))
    return case if isinstance(case, str) else case.name
