"""The tables of `run.py`, which plants bugs, match the current source and tests."""

from pathlib import Path

import run

ROOT = Path(__file__).parent.parent.parent


def test_every_bug_can_be_planted(capsys):
    """If this fails, the source has changed: plant the bug in the text that is there now."""
    assert run.check(run.BUGS, ROOT) == 0, capsys.readouterr().out
    for bug in run.BUGS:
        assert bug.before != bug.after, bug.name
        assert bug.shows, bug.name
        for name in bug.tests:
            assert (ROOT / name).exists(), (bug.name, name)
