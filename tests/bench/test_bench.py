"""`python -m regard bench` from its arguments to its files: no engine is ranked unchecked."""

import dataclasses
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.cli import commands, engines
from regard.cli.bench import command, measure
from regard.cli.bench.cases import CASES, COMPARISONS
from regard.cli.engines import NotInstalledError
from regard.cli.rounds import in_turns
from stand_ins import FakeEngine

# The command, with the measuring in this process and on little memory


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run the command with engines of the test's, quickly; its status, output and messages."""

    def run(*arguments, peers=(), **settings):
        def in_this_process(_module, request, *, on_message, **options):
            seen.update(options)
            bench = measure.Bench(measure.Request(**request), lambda *what: on_message(what))
            return json.loads(json.dumps(dataclasses.asdict(bench.run())))

        seen = {}
        monkeypatch.setattr(command, "run_in_fresh_process", in_this_process)
        monkeypatch.setattr(measure, "ENGINES", (engines.Regard, *peers))
        monkeypatch.setattr(measure, "in_turns", partial(in_turns, settle=0))
        monkeypatch.setattr(measure, "streamed_bytes", lambda: 1 << 20)
        status = commands.run(["bench", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err, seen

    return run


def engine_class(label, **options):
    class Engine(FakeEngine):
        name = label

        def __init__(self, threads):
            super().__init__(threads, **options)

    return Engine


def wrong_sign(output):
    return -output


def wrong_in_one_place(output):
    output[0, 0, 1] *= 1.01  # no row that is sampled
    return output


def not_a_number(output):
    output[0, 0, 0, 0] = np.nan
    return output


def half(output):
    return output[..., :1]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (wrong_sign, r"WrongResultError: off by .* of the largest element"),
        (wrong_in_one_place, "WrongResultError: off by"),
        (not_a_number, "WrongResultError: off by nan"),
        (half, r"WrongResultError: the shape is .*, not"),
    ],
)
def test_a_wrong_peer_is_reported_and_not_ranked(bench, tmp_path, spoil, reason):
    path = tmp_path / "out.json"
    peers = [engine_class("PyTorch"), engine_class("ONNX Runtime", spoil=spoil)]
    status, text, _, _ = bench(
        "--case", "notebook", "--rounds", "1", "--threads", "1", "--json", str(path), peers=peers
    )
    assert status == 0
    assert re.search(f"notebook 6x2: ONNX Runtime left out, {reason}", " ".join(text.split()))
    (case,) = json.loads(path.read_text())["cases"]
    assert list(case["samples"]) == ["regard", "PyTorch"]
    assert case["best_peer"] == "PyTorch"
    assert re.search(reason, case["left_out"]["ONNX Runtime"])


def test_a_wrong_regard_is_exit_status_1(bench, monkeypatch):
    right = regard.scaled_dot_product_attention
    monkeypatch.setattr(regard, "scaled_dot_product_attention", lambda *a, **b: -right(*a, **b))
    status, text, _, _ = bench(
        "--case", "notebook", "--rounds", "1", "--threads", "1", peers=[engine_class("NumPy")]
    )
    assert status == 1
    assert "notebook 6x2: regard left out, WrongResultError" in text


def test_a_missing_and_a_broken_peer_leave_the_others(bench, tmp_path):
    class Missing(FakeEngine):
        name = "PyTorch"

        def __init__(self, threads):
            raise NotInstalledError("torch")

    class Broken(FakeEngine):
        name = "ONNX Runtime"

        def __init__(self, threads):
            raise ImportError("a library\n is missing")

    path = tmp_path / "out.json"
    status, text, _, _ = bench(
        *("--case", "1x8x64x64", "--rounds", "1", "--threads", "1", "--json", str(path)),
        peers=[engines.NumPy, Missing, Broken],
    )
    assert status == 0
    assert "PyTorch: torch is not installed" in text
    assert "ONNX Runtime: ImportError: a library is missing" in text
    assert "PyTorch" not in next(line for line in text.splitlines() if "vs best" in line)
    document = json.loads(path.read_text())
    assert document["missing"] == {
        "PyTorch": "torch is not installed",
        "ONNX Runtime": "ImportError: a library is missing",
    }
    assert list(document["versions"]) == ["regard", "NumPy"]


def test_json_holds_every_number(bench, tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    status, _, errors, seen = bench(
        *("--case", "notebook", "--case", "matmul 512", "--case", "strided", "--case", "2 threads"),
        *("--rounds", "2", "--threads", "2", "--target", "baseline", "--json", str(path)),
        peers=[engines.NumPy],
    )
    assert status == 0
    assert seen["environment"] == {"REGARD_TARGET": "baseline"}
    assert seen["threads"] == 2
    assert [line.split("] ")[1] for line in errors.splitlines()] == [
        "limits of the machine",
        "notebook 6x2",
        "matmul 512",
        "strided 1x16x1024x64",
        "2 threads 1x12x2048x64",
        "limits of the machine",
    ]
    document = json.loads(path.read_text())
    assert {
        "date": str,
        "machine": dict,
        "threads": int,
        "rounds": int,
        "versions": dict,
        "missing": dict,
        "peak": list,
        "bandwidth": list,
        "streamed_bytes": int,
        "seconds": float,
        "cases": list,
        "comparisons": list,
        "goals": list,
    } == {key: type(value) for key, value in document.items()}
    assert len(document["peak"]) == len(document["bandwidth"]) == 2
    notebook, product = document["cases"]
    assert notebook["problem"]["head_dim"] == 2
    assert product["problem"] == {"rows": 512, "depth": 512, "columns": 512, "batch": 0}
    assert product["flops"] == 2 * 512**3
    for case in document["cases"]:
        assert list(case["errors"]) == list(case["samples"]) == ["regard", "NumPy"]
        for samples in case["samples"].values():
            assert len(samples["rounds"]) == 2
            assert samples["seconds"] == pytest.approx(np.median(np.concatenate(samples["rounds"])))
    samples = product["samples"]["NumPy"]
    assert samples["rate"] == pytest.approx(product["flops"] / samples["seconds"] / 1e9)
    assert product["share"] == pytest.approx(
        product["samples"]["regard"]["rate"] * 1e9 / max(document["peak"])
    )
    strided, threads = document["comparisons"]
    assert strided["value"] == pytest.approx(
        np.median(np.concatenate(strided["samples"]["rounds"]))
        / np.median(np.concatenate(strided["beside"]["rounds"]))
    )
    assert threads["limit"] == 1.9
    assert {goal["what"].split(":")[0] for goal in document["goals"]} == {
        "notebook 6x2",
        "matmul 512",
        "strided 1x16x1024x64",
        "2 threads 1x12x2048x64",
    }


def test_what_needs_more_threads_is_left_to_more_threads(bench):
    status, text, _, _ = bench("--case", "2 threads", "--case", "notebook", "--threads", "1")
    assert status == 0
    assert "2 threads" not in text


@pytest.mark.parametrize(
    ("arguments", "rounds", "cases"),
    [
        ([], 5, len(CASES)),
        (["--quick"], 2, sum(case.is_quick for case in CASES)),
        (["--quick", "--rounds", "7"], 7, sum(case.is_quick for case in CASES)),
        (["--quick", "--case", "matmul"], 2, 4),
    ],
)
def test_quick_means_fewer_rounds_and_cases(monkeypatch, arguments, rounds, cases):
    asked = []

    def ask(_module, request, **_options):
        asked.append(request)
        raise RuntimeError("asked")

    monkeypatch.setattr(command, "run_in_fresh_process", ask)
    with pytest.raises(RuntimeError, match="asked"):
        commands.run(["bench", *arguments])
    assert (asked[0]["rounds"], len(asked[0]["cases"])) == (rounds, cases)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "no such"], "argument --case: no case has 'no such' in its name; --list shows"),
        (["--case", ""], "argument --case: no case has '' in its name"),
        (["--case", "2 threads", "--threads", "1"], "compares more threads than 1"),
        (["--rounds", "0"], "argument --rounds: must be from 1 to 1000, got 0"),
        (["--threads", "many"], "argument --threads: must be a whole number, got 'many'"),
        (["--target", "vax"], "argument --target: must be one that runs here ("),
        (["--json", "/no/such/place.json"], "--json: cannot write '/no/such/place.json': No such"),
        (["--json", "."], "argument --json: cannot write '.': Is a directory"),
        (["--plot", "picture.gif"], "argument --plot: must end in .png or .svg, got 'picture.gif'"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["word"], "unrecognized arguments: word"),
        (["--case", "\x1b[31mred"], r"'\x1b[31mred'"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(command, "run_in_fresh_process", None)
    assert commands.run(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "\x1b" not in captured.err
    assert "limits of the machine" not in captured.err


def test_options_come_behind_the_command(capsys):
    assert commands.run(["--threads", "1", "bench"]) == 2
    assert "python -m regard -- bench" in capsys.readouterr().err


def test_no_matplotlib_is_one_line(run_python):
    done = run_python(
        """
        import sys
        sys.modules["matplotlib"] = None
        from regard.cli import main
        sys.exit(main(["bench", "--plot", "out.png", "--json", "out.json"]))
        """
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        "regard: error: ModuleNotFoundError: --plot needs matplotlib.* pip install matplotlib\n",
        done.stderr,
    )


def test_a_picture_of_nothing_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(command, "pen", lambda: None)
    assert commands.run(["bench", "--case", "softmax", "--plot", "out.png"]) == 2
    assert "none of these cases has a limit" in capsys.readouterr().err


def test_a_failure_leaves_files_as_they_were(monkeypatch, tmp_path):
    def fail(*_arguments, **_options):
        raise RuntimeError("the timing failed: no more")

    monkeypatch.setattr(command, "run_in_fresh_process", fail)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("old")
    for path in (old, new):
        with pytest.raises(RuntimeError):
            commands.run(["bench", "--json", str(path)])
    assert old.read_text() == "old"
    assert not new.exists()


# The command as a user runs it


PEERS = ("torch", "onnxruntime")


@pytest.fixture
def without_peers(tmp_path):
    """Put modules in the place of the peers that say that they are missing."""
    for name in PEERS:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    return tmp_path


def test_a_small_run(without_peers):
    options = ("--quick", "--case", "notebook", "--threads", "1", "--json", "out.json")
    done = subprocess.run(
        [sys.executable, "-m", "regard", "bench", *options],
        cwd=without_peers,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("  notebook 6x2 "))
    assert re.search(
        r" +\d+\.\d+ +- +\d+\.\d+ +\d+\.\d+x$", row
    )  # regard, no limit, NumPy, vs best
    document = json.loads((without_peers / "out.json").read_text())
    assert document["missing"] == {
        "PyTorch": "torch is not installed",
        "ONNX Runtime": "onnxruntime is not installed",
    }
    assert [row["name"] for row in document["cases"]] == ["notebook 6x2"]
    assert len(done.stderr.splitlines()) == 3


def test_ctrl_c_leaves_no_traceback_and_no_process(without_peers):
    (without_peers / "torch.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('pid.part').write_text(str(os.getpid()))\n"
        "os.rename('pid.part', 'pid')\n"
        "time.sleep(60)\n"
    )
    listening = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "runpy.run_module('regard', run_name='__main__', alter_sys=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listening, "bench", "--json", "out.json"],
        cwd=without_peers,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not (without_peers / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    assert errors.splitlines()[-1] == "regard: interrupted"
    assert "Traceback" not in errors
    assert not (without_peers / "out.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((without_peers / "pid").read_text()), 0)


def test_asv_times_the_same_cases():
    history = runpy.run_path(str(Path(__file__).parent.parent.parent / "benchmarks/history.py"))
    timed = history["TimeRegard"]
    assert list(timed.params) == [row.name for row in (*CASES, *COMPARISONS)]
    one = timed()
    one.setup("notebook 6x2")
    assert one.time_call("notebook 6x2") is None
    assert one.call().shape == (1, 1, 6, 2)
