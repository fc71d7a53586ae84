"""Code that reads foreign bytes refuses damage with a message: see `fuzz.py`, which can run for
longer."""

import pytest

import readers

INPUTS = {"cache": 100, "training": 100}


@pytest.mark.parametrize("name", readers.READERS)
@pytest.mark.parametrize(
    "times",
    [pytest.param(1, id="short"), pytest.param(99, id="long", marks=pytest.mark.exhaustive)],
)
def test_inputs(name, times):
    for needed in readers.READERS[name].needs:
        pytest.importorskip(needed)
    count = times * INPUTS.get(name, 300)
    taken = readers.fuzz(name, count, seed=times)
    assert 0 < taken < count
