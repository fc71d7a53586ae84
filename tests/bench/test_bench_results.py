"""What `python -m regard bench` makes of its numbers: rates, goals, tables, a picture."""

import dataclasses
import io
import json
import math
import os
import platform
import re
from pathlib import Path

import pytest

from regard.cli import commands
from regard.cli.bench import machine, report
from regard.cli.bench.cases import CASES, COMPARISONS, DECODE
from regard.cli.bench.results import CaseResult, ComparisonResult, Results, Samples, verdicts
from regard.cli.terminal import Terminal, width_of

# What follows from the numbers


def run_of(cases=(), comparisons=(), **fields):
    usual = {
        "date": "2030-01-01T00:00:00+00:00",
        "machine": machine.describe()
        | {"target": "x86_v4", "targets": ["x86_v4", "x86_v3", "baseline"]},
        "threads": 2,
        "rounds": 2,
        "versions": {"regard": "1", "NumPy": "2", "PyTorch": "3", "ONNX Runtime": "4"},
        "missing": {},
        "peak": [400e9, 390e9],
        "bandwidth": [20e9, 19e9],
        "streamed_bytes": 1 << 30,
        "seconds": 1.0,
    }
    return Results(**usual | fields, cases=list(cases), comparisons=list(comparisons))


def case_result(name, **seconds):
    names = {"ORT": "ONNX Runtime"}
    samples = {names.get(key, key): Samples([[value]]) for key, value in seconds.items()}
    return CaseResult(name, samples, dict.fromkeys(samples, 1e-7), {})


def test_rates_and_shares():
    causal = case_result("1x8x8192x128 causal", regard=0.5, PyTorch=1.0, NumPy=2.0)
    assert causal.rate("regard") == pytest.approx(4 * 8 * 8192 * 8192 / 2 * 128 / 0.5 / 1e9)
    assert run_of([causal]).share(causal) == pytest.approx(causal.rate("regard") / 400)
    assert causal.best_peer == "PyTorch"
    assert causal.speed_against("NumPy") == 4.0
    assert causal.speed_against("ONNX Runtime") is None

    decode = case_result("decode 1x32/8x4096x128", regard=2e-3)
    assert decode.rate("regard") == pytest.approx(2 * 8 * 4096 * 128 * 4 / 2e-3 / 1e9)
    assert run_of([decode]).share(decode) == pytest.approx(decode.rate("regard") / 20)
    assert decode.best_peer is None

    call = case_result("notebook 6x2", regard=3e-6)
    assert call.rate("regard") == pytest.approx(3.0)
    assert run_of([call]).share(call) is None


def test_medians_and_quartiles_are_over_all_rounds():
    samples = Samples([[1.0, 5.0], [3.0], [2.0, 4.0]])
    assert samples.seconds == 3.0
    assert samples.spread == pytest.approx((4.0 - 2.0) / 3.0)


@pytest.mark.parametrize(
    ("name", "seconds", "beside", "value", "is_met"),
    [
        ("causal 1x12x1024x64", 0.57, 1.0, 0.57, True),
        ("causal 1x12x1024x64", 0.59, 1.0, 0.59, False),
        ("float16 decode 1x32/32x16384", 0.5, 1.0, 2.0, True),
        ("float16 decode 1x32/32x16384", 0.6, 1.0, 1 / 0.6, False),
        ("mask of blocks 1x8x4096x64", 0.6, 1.0, 1.2, True),  # half of the work is left
        ("mask of blocks 1x8x4096x64", 0.7, 1.0, 1.4, False),
        ("2 threads 1x12x2048x64", 1.0, 1.95, 1.95, True),
    ],
)
def test_comparisons(name, seconds, beside, value, is_met):
    row = ComparisonResult(name, Samples([[seconds]]), Samples([[beside]]))
    assert row.value == pytest.approx(value)
    assert row.is_met == is_met


def test_a_window_is_held_beside_the_operations_that_it_needs():
    row = next(row for row in COMPARISONS if row.name.startswith("window 256"))
    # The first 255 queries see fewer keys than 256.
    pairs = sum(min(256, 1 + query) for query in range(65536))
    assert row.problem.flops == 4 * 4 * 64 * pairs
    assert row.beside.flops == 4 * 4 * 64 * 2048 * 2048
    seconds = row.problem.flops / row.beside.flops
    result = ComparisonResult(row.name, Samples([[1.5 * seconds]]), Samples([[1.0]]))
    assert result.value == pytest.approx(1.5)


def test_goals():
    run = run_of(
        [
            case_result("1x8x8192x64", regard=0.5, PyTorch=0.55, ORT=1.0),
            case_result("decode 1x32/8x4096x128", regard=1.8e-3, PyTorch=7.2e-3),
            case_result("notebook 6x2", regard=3e-6),
            case_result("matmul 512", regard=1.0, NumPy=1.2, PyTorch=0.5),
        ],
        [ComparisonResult("strided 1x16x1024x64", Samples([[1.1]]), Samples([[1.0]]))],
    )
    found = {verdict.what: verdict for verdict in verdicts(run)}
    share = 4 * 8 * 8192 * 8192 * 64 / 0.5 / 400e9
    expected = {
        "1x8x8192x64: of the peak": (0.80, share, False),
        "1x8x8192x64: against PyTorch": (1.2, 1.1, False),
        "decode 1x32/8x4096x128: of the bandwidth": (0.88, 33554432 / 1.8e-3 / 20e9, True),
        "decode 1x32/8x4096x128: against PyTorch": (3.0, 4.0, True),
        "notebook 6x2: us": (4.0, 3.0, True),
        "matmul 512: against NumPy": (1.1, 1.2, True),
        "geometric mean over PyTorch": (1.9, math.sqrt(1.1 * 4.0), True),
        "strided 1x16x1024x64: time of (B, L, H, D) views, of contiguous arrays'": (
            1.05,
            1.1,
            False,
        ),
    }
    assert {
        name: (verdict.wanted, pytest.approx(verdict.reached), verdict.is_met)
        for name, verdict in found.items()
    } == expected


def test_a_forced_target_is_not_held_beside_peers():
    row = case_result("1x8x8192x64", regard=0.5, PyTorch=0.1)
    forced = {"target": "x86_v3", "targets": ["x86_v4", "x86_v3"]}
    assert [one.what for one in verdicts(run_of([row], machine=forced))] == [
        "1x8x8192x64: of the peak"
    ]


NUMPY_ALONE = {"regard": "1", "NumPy": "2"}
NOT_JUDGED = "not judged: 2 against the fastest peer, as no peer is installed but NumPy"


def test_numpy_alone_is_no_peer_to_be_ranked_against():
    """It is on every machine, and slow: what is asked for is the speed against the fastest."""
    rows = [
        case_result("1x8x8192x64", regard=0.5, NumPy=5.0),
        case_result("notebook 6x2", regard=3e-6, NumPy=3e-5),
        case_result("matmul 512", regard=1.0, NumPy=1.2),
    ]
    run = run_of(rows, versions=NUMPY_ALONE)
    assert [one.what for one in verdicts(run)] == [
        "1x8x8192x64: of the peak",
        "notebook 6x2: us",
        "matmul 512: against NumPy",
    ]
    assert NOT_JUDGED in " ".join(text_of(run).split())
    assert NOT_JUDGED in " ".join(text_of(run, 40).split())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"versions": NUMPY_ALONE, "machine": {"target": "x86_v3", "targets": ["x86_v4", "x86_v3"]}},
    ],
    ids=["peers", "forced"],
)
def test_goals_that_are_not_judged_are_told_where_peers_are_missing_alone(fields):
    machine_fields = {"machine": machine.describe() | fields["machine"]} if fields else {}
    run = run_of([case_result("1x8x8192x64", regard=0.5, NumPy=5.0)], **fields | machine_fields)
    assert not [one.what for one in verdicts(run) if "against" in one.what]
    assert "not judged" not in text_of(run)


def test_the_share_that_is_asked_for_is_that_of_the_target():
    row = case_result("1x8x8192x128 causal", regard=0.5)
    wanted = {
        target: [
            one.wanted
            for one in verdicts(run_of([row], machine={"target": target, "targets": [target]}))
        ]
        for target in ("x86_v4", "x86_v3", "baseline")
    }
    assert wanted == {"x86_v4": [0.84], "x86_v3": [0.78], "baseline": []}


# What is written


EVERY = run_of(
    [
        dataclasses.replace(
            case_result(case.name, regard=1e-3, NumPy=2e-3, PyTorch=1.5e-3, ORT=2.5e-3),
            left_out={"Fake": "WrongResultError: off by 1.0e+00 of the largest element"},
        )
        for case in CASES
    ],
    [ComparisonResult(row.name, Samples([[1.0]]), Samples([[1.0]])) for row in COMPARISONS],
    missing={"Other": "other is not installed"},
)


def text_of(run, columns=80, **settings):
    stream = io.StringIO()
    report.show(Terminal(stream, columns, **settings), run)
    return stream.getvalue()


@pytest.mark.parametrize("columns", [80, 90, 100])
def test_the_table_fits_and_is_aligned(columns):
    lines = text_of(EVERY, columns).splitlines()
    assert max(map(width_of, lines)) <= columns
    header = next(line for line in lines if line.startswith("  case"))
    for name in ("regard", "limit", "NumPy", "PyTorch", "ORT", "vs best"):
        end = header.index(name) + len(name)
        for case in CASES:
            line = next(line for line in lines if line.startswith(f"  {case.name} "))
            assert line[end - 1] not in " ", (name, line)
            assert line[end : end + 1] in (" ", ""), (name, line)
    assert ("time" in header) == (columns == 100)


@pytest.mark.parametrize("columns", [32, 40, 60])
def test_a_narrow_table_keeps_what_matters_most(columns):
    header = next(line for line in text_of(EVERY, columns).splitlines() if "vs best" in line)
    assert re.match("  case +regard .*vs best", header)
    assert "iqr" not in header


def test_the_text_says_what_was_left_out_and_what_was_missed():
    text = text_of(EVERY, 100)
    assert "notebook 6x2: Fake left out, WrongResultError: off by 1.0e+00" in text
    assert "Other: other is not installed" in text
    assert "missed: strided" not in text
    assert (
        "missed: causal 1x12x1024x64: time, of the whole square's 1.00, wanted at most 0.58" in text
    )
    assert re.search(r"\d+ of \d+ goals met", text)
    failed = run_of([CaseResult("matmul 512", {}, {}, {"regard": "TypeError: no"})])
    assert "matmul 512: regard left out, TypeError: no" in text_of(failed)
    assert re.search(r"^  matmul 512 ( +-){5}", text_of(failed), re.MULTILINE)


@pytest.mark.parametrize(("after", "is_quiet"), [(361e9, True), (359e9, False)])
def test_a_busy_machine_is_named(after, is_quiet):
    text = text_of(run_of(EVERY.cases[:1], peak=[400e9, after]))
    assert ("the machine was not quiet" in text) != is_quiet


def test_the_list_names_every_case(capsys):
    assert commands.run(["bench", "--list"]) == 0
    text = capsys.readouterr().out
    for row in (*CASES, *COMPARISONS):
        assert re.search(rf"^  {re.escape(row.name)}\b.*{re.escape(row.about)}$", text, re.M)


def test_results_survive_json():
    saved = json.loads(json.dumps(dataclasses.asdict(EVERY), allow_nan=False))
    assert Results.of(saved) == EVERY
    failed = run_of([], [ComparisonResult("causal 1x8x4096x64", left_out="TypeError: no")])
    assert Results.of(json.loads(json.dumps(dataclasses.asdict(failed)))) == failed


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from regard.cli.bench.plot import pen

    draw = pen()
    picture = draw(EVERY, "png")
    assert picture.startswith(b"\x89PNG")
    assert 5_000 < len(picture) < 200_000
    drawing = draw(run_of([row for row in EVERY.cases if row.case.group is DECODE]), "svg")
    assert b"</svg>" in drawing
    assert drawing != draw(EVERY, "svg")


# The machine


def test_the_machine_is_described_without_names():
    described = json.dumps(machine.describe())
    for name in (platform.node(), os.environ.get("USER", ""), str(Path.home())):
        assert not name or f'"{name}"' not in described
    assert machine.describe()["cpus"] >= 1


def test_caches_and_memory(tmp_path, monkeypatch):
    for number, (level, kind, size) in enumerate(
        [
            (1, "Data", "32K"),
            (1, "Instruction", "64K"),
            (2, "Unified", "1024K"),
            (3, "Unified", "2G"),
        ]
    ):
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, content in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{content}\n")
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    assert machine.describe()["cache_bytes"] == {"L1": 32 << 10, "L2": 1 << 20, "L3": 2 << 30}
    monkeypatch.setattr(machine, "_memory", lambda _field: 1 << 40)
    assert machine.streamed_bytes() == 4 << 30
    monkeypatch.setattr(machine, "_memory", lambda _field: 8 << 30)
    assert machine.streamed_bytes() == 1 << 30
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "missing")
    assert machine.streamed_bytes() == 512 << 20
