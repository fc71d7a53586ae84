"""What is made of times: problems and their work, rates and goals, tables, pictures, JSON."""

import json
import re
import tempfile

import numpy as np
import pytest
from benchmarks.table.attention import Variant
from benchmarks.table.caches import Append, CachedAttention
from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.goals import RATIOS, SECONDS, goals_of
from benchmarks.table.measuring import ComparisonResult, TableResults
from benchmarks.table.report import table_document_of, table_report_of

import reference
from regard._bench import machine
from regard._bench.engines import Regard
from regard._bench.problems import CALL, DECODE, FORWARD, Attention, parse_shape
from regard._bench.results import CaseResult, Results, Samples

PROBLEMS = [
    Attention(2, 4, 2, 7, 7, 5),
    Attention(1, 3, 3, 8, 8, 4, is_causal=True),
    Attention(1, 4, 2, 5, 6, 3, value_dim=7),
    Variant(1, 2, 1, 9, 9, 4, window=(2, 1)),
    Variant(1, 2, 2, 12, 16, 4, mask_block=4),
    Variant(2, 2, 1, 5, 6, 3, is_strided=True),
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_sampled_rows_and_work_are_those_of_the_visible_pairs(problem):
    query, key, value, *mask = inputs = problem.make_inputs()
    ahead = np.arange(problem.kv_len) - np.arange(problem.q_len)[:, None]
    left, right = getattr(problem, "window", None) or (99, 99)
    seen = (ahead >= -left) & (ahead <= min(right, 0 if problem.is_causal else 99))
    seen = seen & mask[0] if mask and mask[0] is not None else seen
    exact = reference.attention(query, key, value, seen).output
    index, rows = problem.sample(inputs)
    np.testing.assert_allclose(rows, exact[index], rtol=1e-12)
    columns = problem.head_dim + (problem.value_dim or problem.head_dim)
    pairs = problem.q_len**2 / 2 if problem.is_causal else seen.sum()
    assert problem.flops == problem.batch * problem.heads * pairs * 2 * columns


@pytest.mark.parametrize(
    "problem",
    [
        CachedAttention(2, 4, 2, 1, 9, 4, storage="float16"),
        CachedAttention(1, 4, 2, 1, 9, 4, repeats=3, is_mapped=True),
        CachedAttention(1, 4, 2, 7, 7, 4, is_causal=True),
        Append(2, 9, 4, evicts=True),
    ],
)
def test_a_cache_gives_what_the_reference_gives(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inputs = problem.make_inputs()
    call = problem.on(Regard(1), inputs)
    index, rows = problem.sample(inputs)
    for _ in range(3):  # each call leaves room for the next
        np.testing.assert_allclose(call()[index], rows, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("text", "name", "group", "problem"),
    [
        ("1,8,512,64", "1x8x512x64", FORWARD, Attention(1, 8, 8, 512, 512, 64, 64)),
        ("1,4,300/500,64/32", "1x4x300/500x64/32", FORWARD, Attention(1, 4, 4, 300, 500, 64, 32)),
        ("1,8/2,1/4096,128", "1x8/2x1/4096x128", DECODE, Attention(1, 8, 2, 1, 4096, 128, 128)),
        ("1,1,6,2", "1x1x6x2", CALL, Attention(1, 1, 1, 6, 6, 2, 2)),
    ],
)
def test_a_shape(text, name, group, problem):
    case = parse_shape(text)
    assert (case.name, case.group, case.problem) == (name, group, problem)


TABLE = {row.name: row for row in (*CASES, *COMPARISONS)}


def case_result(case, left_out=None, failed=None, **seconds):
    """Return the time that each engine took for a case, given as a case or by its name."""
    samples = {
        {"ORT": "ONNX Runtime"}.get(name, name): Samples([[value]])
        for name, value in seconds.items()
    }
    case = TABLE.get(case, case)
    return CaseResult(case, samples, dict.fromkeys(samples, 1e-7), left_out or {}, failed or {})


def comparison_result(name, seconds=1.0, reference=1.0):
    return ComparisonResult(TABLE[name], Samples([[seconds]]), Samples([[reference]]), "")


def run_of(cases=(), comparisons=(), **fields):
    usual = {
        "date": "2030-01-01T00:00:00+00:00",
        "machine": machine.describe() | {"target": "x86_v4", "targets": ["x86_v4", "x86_v3"]},
        "threads": 2,
        "rounds": 2,
        "versions": {"regard": "1", "NumPy": "2", "PyTorch": "3", "ONNX Runtime": "4"},
        "missing": [],
        "broken": {},
        "peak": [400e9, 390e9],
        "bandwidth": [20e9, 19e9],
        "streamed_bytes": 1 << 30,
        "seconds": 1.0,
    }
    return TableResults(Results(**usual | fields, cases=list(cases)), list(comparisons), {})


def test_rates_and_shares():
    causal = case_result("1x8x8192x128 causal", regard=0.5, PyTorch=1.0, NumPy=2.0)
    assert causal.rate("regard") == pytest.approx(4 * 8 * 8192 * 8192 / 2 * 128 / 0.5 / 1e9)
    assert run_of().results.share(causal) == pytest.approx(causal.rate("regard") / 400)
    assert (causal.best_peer, causal.speed_over("NumPy")) == ("PyTorch", 4.0)
    decode = case_result("decode 1x32/8x4096x128", regard=2e-3)
    assert decode.rate("regard") == pytest.approx(2 * 8 * 4096 * 128 * 4 / 2e-3 / 1e9)
    assert run_of().results.share(decode) == pytest.approx(decode.rate("regard") / 20)
    assert run_of().results.share(case_result("notebook 6x2", regard=3e-6)) is None
    samples = Samples([[1.0, 5.0], [3.0], [2.0, 4.0]])
    assert (samples.seconds, samples.spread) == (3.0, pytest.approx((4.0 - 2.0) / 3.0))


def test_goals():
    run = run_of(
        [
            case_result("1x8x8192x64", regard=0.5, PyTorch=0.55, ORT=1.0),
            case_result("decode 1x32/8x4096x128", regard=1.8e-3, PyTorch=7.2e-3),
            case_result("notebook 6x2", regard=3e-6),
            case_result("matmul 512", regard=1.0, NumPy=1.2, PyTorch=0.9),
        ],
        [
            comparison_result("causal 1x12x1024x64", 0.59, 1.0),
            comparison_result("mask of blocks 1x8x4096x64", 0.6, 1.0),  # half of the work remains
        ],
    )
    goals = {goal.what.partition(": time")[0]: goal for goal in goals_of(run)}
    assert goals["1x8x8192x64: of the fma peak"].reached == pytest.approx(
        4 * 8 * 8192 * 8192 * 64 / 0.5 / 400e9
    )
    assert goals["geometric mean over PyTorch"].reached == pytest.approx((1.1 * 4.0) ** 0.5)
    assert goals["causal 1x12x1024x64"].reached == pytest.approx(0.59)
    assert {name for name, goal in goals.items() if not goal.is_met} == {
        *("1x8x8192x64: of the fma peak", "1x8x8192x64: over PyTorch"),
        *("matmul 512: over PyTorch", "causal 1x12x1024x64"),
    }
    # A forced target is not compared with other engines.
    forced = run_of(run.results.cases[:1], machine={"target": "x86_v3", "targets": ["x86_v4"]})
    assert {goal.what for goal in goals_of(forced)} == {"1x8x8192x64: of the fma peak"}
    assert list(RATIOS) == [row.name for row in COMPARISONS]
    assert SECONDS.keys() <= {case.name for case in CASES}


def likely_result(case):
    seconds = max(case.problem.flops / 2e11, case.problem.bytes / 1.5e10)
    return case_result(case, regard=seconds, NumPy=2 * seconds, PyTorch=1.5 * seconds, ORT=seconds)


EVERY = run_of(map(likely_result, CASES), [comparison_result(row.name) for row in COMPARISONS])


def test_tables_have_every_case_and_say_what_failed():
    lines = "\n".join(table_report_of(EVERY)).splitlines()
    assert max(map(len, lines)) <= 110
    for case in CASES:
        shown = case.name.removeprefix(f"{case.group.title} ")
        assert any(line.startswith(f"  {shown} ") for line in lines)
    failed = run_of([case_result("matmul 512", failed={"regard": "TypeError: no"})])
    text = "\n".join(table_report_of(failed, with_goals=True))
    assert "matmul 512: regard failed, TypeError: no" in text
    busy = run_of(EVERY.results.cases[:1], peak=[400e9, 359e9])
    assert "the machine was busy" in "\n".join(table_report_of(busy))
    left_out = run_of([case_result("matmul 512", regard=1.0, left_out={"NumPy": "memory: 9.0 GB"})])
    assert re.search(r"^ +512 .* memory ", "\n".join(table_report_of(left_out)), re.MULTILINE)


def test_json_holds_every_number():
    document = json.loads(json.dumps(table_document_of(EVERY, with_goals=True), allow_nan=False))
    product = next(case for case in document["cases"] if case["name"] == "matmul 512")
    assert product["flops"] == 2 * 512**3
    samples = product["samples"]["NumPy"]
    assert samples["rounds"] == [[samples["seconds"]]]
    assert samples["rate"] == pytest.approx(product["flops"] / samples["seconds"] / 1e9)
    assert samples["regard_speed"] == 2.0
    assert {goal["is_met"] for goal in document["goals"]} == {True, False}


def test_pictures():
    pytest.importorskip("matplotlib")
    from regard._bench import plot

    assert plot.pen()(plot.draw_bars, EVERY.results, "png").startswith(b"\x89PNG")
