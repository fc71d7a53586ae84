"""Test `python -m regard bench` and `python -m benchmarks.table`, from arguments to files."""

import json
import re

import pytest
from benchmarks.table.__main__ import main as table

from regard._bench.engines import NumPy
from regard._cli import bench

SMALL = ("--shape", "1,2,16,8", "--rounds", "1", "--threads", "1")


@pytest.mark.parametrize(
    ("arguments", "rounds", "cases"),
    [
        ([], 5, 5),
        (["--quick", "--rounds", "7"], 7, 5),
        (["--shape", "1,8,512,64", "--shape", "1,1,6,2"], 5, 2),
        (["--shape", "1,32/8,128,64", "--causal"], 5, 1),
    ],
)
def test_what_is_measured(arguments, rounds, cases, run, monkeypatch):
    requests = []
    monkeypatch.setattr(
        bench, "run_in_fresh_process", lambda _work, request, **_options: requests.append(request)
    )
    assert run("bench", *arguments)[0] == 1  # nothing was measured
    (request,) = requests
    assert (request.rounds, len(request.cases)) == (rounds, cases)
    if "--shape" in arguments:
        assert all(case.problem.is_causal == ("--causal" in arguments) for case in request.cases)


def test_no_matplotlib_is_one_line(run_python):
    done = run_python(
        """
        import sys
        sys.modules["matplotlib"] = None
        from regard._cli import main
        sys.exit(main(["bench", "--plot", "out.png", "--json", "out.json"]))
        """
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        "regard: error: ImportError: --plot needs the matplotlib package: .* pip install .*\n",
        done.stderr,
    )


@pytest.mark.slow
def test_a_small_run_as_a_user_runs_it(process, without_peers):
    done = process("bench", "--quick", *SMALL, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("  1x2x16x8 "))
    assert re.search(r" +\d+\.\d+ us +\d+\.\d+ +- +\d+\.\d+ +\d+\.\d+x$", row)
    assert "not installed: PyTorch, ONNX Runtime" in done.stdout
    document = json.loads((without_peers / "out.json").read_text())
    assert document["missing"] == ["PyTorch", "ONNX Runtime"]
    assert len(done.stderr.splitlines()) == 3


def test_a_run_of_the_table_and_its_files(measured_here, tmp_path, capsys):
    path = tmp_path / "out.json"
    path.write_text("old")
    seen = measured_here(NumPy)
    options = ("--rounds", "2", "--threads", "2", "--target", "baseline", "--json", str(path))
    names = ("notebook 6x2", "early 1x32/8x128x128", "append beside 1x32/8x4096x128")
    assert table([*(f"--case={name}" for name in names), *options]) == 0
    text, errors = capsys.readouterr()
    assert seen["environment"] == {"REGARD_TARGET": "baseline"}
    assert seen["threads"] == seen["request"].threads == 2
    steps = ["limits of the machine", *names, "limits of the machine"]
    assert [line.split("] ")[1] for line in errors.splitlines()] == steps
    assert all(f"  {name} " in text for name in names)
    document = json.loads(path.read_text())
    assert [case["name"] for case in document["cases"]] == [*names[:2]]
    assert document["comparisons"][0]["ratio"] > 0
    for case in document["cases"]:
        assert [len(samples["rounds"]) for samples in case["samples"].values()] == [2, 2]
