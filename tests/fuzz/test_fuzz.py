"""Code that reads foreign bytes refuses damage with a message: see `fuzz.py`, which can run for
longer."""

import random

import pytest

import readers

INPUTS = {"cache": 150, "training": 300, "command-line": 300}


@pytest.mark.parametrize("name", readers.READERS)
@pytest.mark.parametrize(
    "times",
    [pytest.param(1, id="short"), pytest.param(30, id="long", marks=pytest.mark.exhaustive)],
)
def test_inputs(name, times):
    for needed in readers.READERS[name].needs:
        pytest.importorskip(needed)
    count = times * INPUTS.get(name, 1500)
    taken = readers.fuzz(name, count, seed=times)
    assert 0 < taken < count


def test_an_input_is_made_again_by_its_number(tmp_path):
    one = readers.Ctranslate2(tmp_path)
    assert len({one.draw(random.Random(f"0 x {n}")) for n in (1, 1, 2)}) == 2


class Careless(readers.Ctranslate2):
    """A reader with every fault."""

    def begin(self):
        return [bytes(8)]

    def read(self):
        data = self.path.read_bytes()
        if data[:1] == b"\1":
            raise KeyError(data[:1])
        if data[:1] == b"\2":
            raise ValueError("no name")
        if data[:1] == b"\3":
            self.path.write_bytes(b"")
            raise ValueError(self.path)


@pytest.mark.parametrize(
    ("first", "fault"),
    [(1, KeyError), (2, "does not name the file"), (3, "a refused file has changed")],
)
def test_faults_are_seen(first, fault, tmp_path, monkeypatch):
    monkeypatch.setattr(Careless, "draw", lambda self, chance: bytes([first]) + bytes(7))
    monkeypatch.setitem(readers.READERS, "careless", Careless)
    with pytest.raises(readers.Fault, match=str(getattr(fault, "__name__", fault))) as caught:
        readers.fuzz("careless", 3)
    assert "careless, seed 0, input 0" in str(caught.value)
