"""Calls of every kind run next to each other and next to other programs: see `soak.py`, which can
run for longer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import calls


@pytest.mark.exhaustive
def test_a_short_soak():
    script, cases = Path(__file__).with_name("soak.py"), str(4 * len(calls.KINDS))
    command = [sys.executable, script, "--seconds", "20", "--cases", cases, "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no faults" in done.stdout
    rows = re.findall(r"^(\w+) +(\d+) +(\d+) of (\d+) cases$", done.stdout, re.MULTILINE)
    assert {kind.__name__ for kind in calls.KINDS} == {name for name, *_ in rows}
    for name, made, errors, count in rows:
        assert int(made) > 0, name
        assert int(errors) < int(count), name
    assert re.search(r" [1-9]\d* forks", done.stdout)
    assert re.search(r" [1-9]\d* stopped by", done.stdout)


def test_a_wrong_bit_is_reported(tmp_path):
    """The soak detects the faults that it is meant to detect."""
    import worker

    number = calls.KINDS.index(calls.guide)
    right = calls.digest(calls.call_of(number).result(1, None))
    settings = {"seed": 0, "seconds": 1, "threads": 1, "folder": str(tmp_path)}
    one = worker.Worker(settings | {"expected": {number: right}})
    caller = one.callers[0]
    one.check(one.calls[number], 2, caller, may_be_stopped=False)
    assert not one.faults
    call = one.calls[number]
    wrong = call.result(1, None).copy()
    wrong[1, 17, 3] += 1e-12
    results = iter([wrong])
    flawed = calls.dataclasses.replace(call, run=lambda *_: next(results, call.run(1, None)))
    one.check(flawed, 2, caller, may_be_stopped=False)
    (fault,) = one.faults
    assert "part 0: array(" in fault
    assert "with these threads it is right, with one right" in fault
