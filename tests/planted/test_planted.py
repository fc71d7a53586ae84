"""The tables of `run.py`, which plants bugs, match the current source and tests."""

from collections import Counter
from pathlib import Path

import pytest

import run
from planted_bug import Bug, DoesNotApply

ROOT = Path(__file__).parent.parent.parent


def test_every_bug_can_be_planted(capsys):
    """If this fails, the source has changed: plant the bug in the text that is there now."""
    assert run.check(run.BUGS, ROOT) == 0, capsys.readouterr().out
    for bug in run.BUGS:
        assert bug.before != bug.after, bug.name
        assert bug.shows, bug.name
        for name in bug.tests:
            assert (ROOT / name).exists(), (bug.name, name)


def test_names_tell_bugs_apart():
    assert not [name for name, count in Counter(bug.name for bug in run.BUGS).items() if count > 1]
    assert run.chosen([]) == run.BUGS
    assert run.chosen(["chunks are merged"]) == [b for b in run.BUGS if "chunks.cpp" in b.file]
    with pytest.raises(SystemExit, match="no bug's name or file has 'nowhere'"):
        run.chosen(["nowhere"])


@pytest.mark.parametrize("text", ["", "a a"], ids=["absent", "twice"])
def test_a_text_that_stands_elsewhere_is_an_error(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(DoesNotApply, match=rf"occurs {text.count('a')} times"):
        Bug("name", "file", "a", "b", (), "").planted(tmp_path)
    with pytest.raises(DoesNotApply, match="there is no file other"):
        Bug("name", "other", "a", "b", (), "").planted(tmp_path)
