"""The types that the tests' fixtures go through, and tables whose cases take one type each."""

import numpy as np
import pytest

TYPES = {
    "dtype": ["float32", "float64"],
    "half": ["float16", "bfloat16"],
    "single_or_half": ["float32", "float16", "bfloat16"],
    "storage": ["float32", "float64", "float16", "bfloat16"],
}


def type_named(name):
    """A NumPy dtype; the test is skipped where bfloat16 is not installed."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def each_in_one_type(cases, fixture, quick=1, often=1):
    """Parametrize a test by `case` and, for each case, one of the types of `fixture` in turn.

    Every type meets a share of the cases on every target. The full product, case by type by
    target, shows nothing more where the code under test is one template for all types, and takes
    two to four times as long. One case of every `quick` belongs to the quick tests, and the others
    are slow; one of every `often` runs where nothing else is asked for, and the others are
    exhaustive.
    """
    types = TYPES[fixture]
    pairs = []
    for number, case in enumerate(cases):
        # One step further in each round: tables often alternate with a period of their own.
        name = types[(number + number // len(types)) % len(types)]
        marks = [pytest.mark.slow] if number % quick else []
        marks += [pytest.mark.exhaustive] if number % often else []
        pairs.append(pytest.param(case, name, id=f"{_name(case)}-{name}", marks=marks))
    return pytest.mark.parametrize(("case", fixture), pairs, indirect=[fixture])


def _name(case):
    if isinstance(case, tuple):
        return "-".join(map(str, case))
    return case if isinstance(case, str) else case.name
