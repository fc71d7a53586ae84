"""Test `python -m benchmarks.table`, from its arguments to its files."""

import json
import re

import pytest
from benchmarks.table.__main__ import main
from benchmarks.table.cases import CASES, COMPARISONS

from regard._bench.engines import NumPy
from regard._cli import bench
from stand_ins import engine_named


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


@pytest.fixture
def requested(monkeypatch, run):
    """Return what a command would measure."""

    def ask(*arguments):
        requests = []

        def take(_work, request, **_options):
            requests.append(request)
            raise RuntimeError("asked")

        monkeypatch.setattr(bench, "run_in_fresh_process", take)
        with pytest.raises(RuntimeError, match="asked"):
            run(*arguments)
        return requests[0]

    return ask


@pytest.mark.parametrize(
    ("arguments", "rounds", "cases"),
    [
        ([], 5, len(CASES)),
        (["--quick"], 2, sum(case.is_quick for case in CASES)),
        (["--quick", "--rounds", "7"], 7, sum(case.is_quick for case in CASES)),
        (["--quick", "--case", "matmul"], 2, sum("matmul" in case.name for case in CASES)),
    ],
)
def test_what_is_measured(requested, arguments, rounds, cases):
    request = requested(*arguments)
    assert (request.rounds, len(request.cases)) == (rounds, cases)


def test_what_needs_more_threads_is_left_out(requested):
    with_two, with_one = (
        [row.name for row in requested("--threads", threads).comparisons] for threads in "21"
    )
    of_two = {"2 threads 1x12x2048x64", "2 threads backward 1x1x2048x64"}
    assert set(with_two) - set(with_one) == of_two


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


def test_goals_are_shown_on_request(run, measured_here):
    measured_here(engine_named("PyTorch"))
    case = ("--case", "notebook", "--rounds", "1", "--threads", "1")
    assert "goal" not in run(*case)[1]
    assert re.search(r"\d of 2 goals met", run(*case, "--goals")[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "no such"], "argument --case: no case has 'no such' in its name; --list shows"),
        (["--case", ""], "argument --case: no case has '' in its name"),
        (["--case", "2 threads", "--threads", "1"], "needs more threads than 1"),
        (["--case", "\x1b[31mred"], r"'\x1b[31mred'"),
        (["--case", "softmax", "--plot", "out.png"], "none of these cases has a machine limit"),
        (["--shape", "1,1,6,2"], "unrecognized arguments: --shape 1,1,6,2"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(run, monkeypatch, arguments, message):
    monkeypatch.setattr(bench, "run_in_fresh_process", None)
    status, output, errors = run(*arguments)
    assert (status, output) == (2, "")
    assert message in errors


def test_the_list(run):
    status, text, errors = run("--list")
    assert (status, errors) == (0, "")
    assert all(f"  {row.name}" in text for row in (*CASES, *COMPARISONS))


def test_asv_times_the_same_cases():
    from benchmarks.history import TimeRegard

    assert list(TimeRegard.params) == [row.name for row in (*CASES, *COMPARISONS)]
    one = TimeRegard()
    one.setup("notebook 6x2")
    assert one.time_call("notebook 6x2") is None
    assert one.call().shape == (1, 1, 6, 2)
