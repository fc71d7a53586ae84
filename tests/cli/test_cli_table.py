"""Test `python -m benchmarks.table`, from its arguments to its files."""

import json
import re

import pytest
from benchmarks.table.__main__ import main
from benchmarks.table.cases import CASES, COMPARISONS

from regard._bench.engines import NumPy
from regard._cli import bench


@pytest.fixture
def run(capsys):
    """Run the command in this process, and return its status, output and messages."""

    def run(*arguments):
        try:
            status = main(list(arguments))
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_run_and_its_files(run, measured_here, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    seen = measured_here(NumPy)
    options = ("--rounds", "2", "--threads", "2", "--target", "baseline", "--json", str(path))
    names = ("notebook 6x2", "early 1x32/8x128x128", "append beside 1x32/8x4096x128")
    status, text, errors = run(*(f"--case={name}" for name in names), *options)
    assert status == 0
    assert seen["environment"] == {"REGARD_TARGET": "baseline"}
    assert seen["threads"] == seen["request"].threads == 2
    steps = ["limits of the machine", *names, "limits of the machine"]
    assert [line.split("] ")[1] for line in errors.splitlines()] == steps
    assert re.search(r"^  notebook 6x2 +\d.* us +\d", text, re.MULTILINE)
    assert re.search(r"^  append beside 1x32/8x4096x128 +\d\.\d\dx  time", text, re.MULTILINE)
    document = json.loads(path.read_text())
    assert [case["name"] for case in document["cases"]] == [*names[:2]]
    assert document["comparisons"][0]["ratio"] > 0
    assert len(document["peak"]) == len(document["bandwidth"]) == 2
    for case in document["cases"]:
        assert list(case["errors"]) == list(case["samples"]) == ["regard", "NumPy"]
        assert all(len(samples["rounds"]) == 2 for samples in case["samples"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "no such"], "argument --case: no case has 'no such' in its name; --list shows"),
        (["--case", "2 threads", "--threads", "1"], "needs more threads than 1"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(run, monkeypatch, arguments, message):
    monkeypatch.setattr(bench, "run_in_fresh_process", None)
    status, output, errors = run(*arguments)
    assert (status, output) == (2, "")
    assert message in errors


def test_asv_times_the_same_cases():
    from benchmarks.history import TimeRegard

    assert list(TimeRegard.params) == [row.name for row in (*CASES, *COMPARISONS)]
    one = TimeRegard()
    one.setup("notebook 6x2")
    assert one.time_call("notebook 6x2") is None
    assert one.call().shape == (1, 1, 6, 2)
