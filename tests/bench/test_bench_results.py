"""Test what is derived from the times: rates, shares, ratios, and the goals."""

import math

import pytest
from benchmarks.table.cases import COMPARISONS
from benchmarks.table.goals import goals_of, unjudged

from bench_runs import case_result, comparison_result, run_of, table_run_of
from regard._bench.results import Samples


def test_rates_and_shares():
    causal = case_result("1x8x8192x128 causal", regard=0.5, PyTorch=1.0, NumPy=2.0)
    assert causal.rate("regard") == pytest.approx(4 * 8 * 8192 * 8192 / 2 * 128 / 0.5 / 1e9)
    assert run_of([causal]).share(causal) == pytest.approx(causal.rate("regard") / 400)
    assert causal.best_peer == "PyTorch"
    assert causal.speed_over("NumPy") == 4.0
    assert causal.speed_over("ONNX Runtime") is None

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
    ("name", "seconds", "reference", "ratio", "is_met"),
    [
        ("causal 1x12x1024x64", 0.57, 1.0, 0.57, True),
        ("causal 1x12x1024x64", 0.59, 1.0, 0.59, False),
        ("float16 decode 1x32/32x16384", 0.5, 1.0, 2.0, True),
        ("float16 decode 1x32/32x16384", 0.6, 1.0, 1 / 0.6, False),
        ("mask of blocks 1x8x4096x64", 0.6, 1.0, 1.2, True),  # half of the work remains
        ("mask of blocks 1x8x4096x64", 0.7, 1.0, 1.4, False),
        ("2 threads 1x12x2048x64", 1.0, 1.95, 1.95, True),
    ],
)
def test_comparisons(name, seconds, reference, ratio, is_met):
    row = comparison_result(name, seconds, reference)
    assert row.ratio == pytest.approx(ratio)
    assert [goal.is_met for goal in goals_of(table_run_of(comparisons=[row]))] == [is_met]


def test_a_window_is_compared_by_the_operations_that_it_needs():
    row = next(row for row in COMPARISONS if row.name.startswith("window 256"))
    # The first 255 queries see fewer than 256 keys.
    pairs = sum(min(256, 1 + query) for query in range(65536))
    assert row.problem.flops == 4 * 4 * 64 * pairs
    assert row.reference.flops == 4 * 4 * 64 * 2048 * 2048
    seconds = row.problem.flops / row.reference.flops
    assert comparison_result(row.name, 1.5 * seconds, 1.0).ratio == pytest.approx(1.5)


def test_goals():
    run = table_run_of(
        [
            case_result("1x8x8192x64", regard=0.5, PyTorch=0.55, ORT=1.0),
            case_result("1x8x4096x128", regard=0.1),
            case_result("1x12x512x64", regard=0.1),
            case_result("decode 1x32/8x4096x128", regard=1.8e-3, PyTorch=7.2e-3),
            case_result("notebook 6x2", regard=3e-6),
            case_result("matmul 512", regard=1.0, NumPy=1.2, PyTorch=0.9),
            case_result("matmul 96x128x64x128", regard=1.0, NumPy=1.2, PyTorch=1.3),
            case_result("softmax 4096x1024", regard=1.0, NumPy=2.0, ORT=1.0),
        ],
        [comparison_result("strided 1x16x1024x64", 1.1, 1.0)],
    )
    share_64 = 4 * 8 * 8192 * 8192 * 64 / 0.5 / 400e9
    share_128 = 4 * 8 * 4096 * 4096 * 128 / 0.1 / 400e9
    strided = "strided 1x16x1024x64: time of (B, L, H, D) views relative to contiguous arrays"
    expected = {
        "1x8x8192x64: of the fma peak": (0.80, share_64, False),
        "1x8x8192x64: over PyTorch": (1.2, 1.1, False),
        "1x8x4096x128: of the fma peak": (0.84, share_128, True),
        "decode 1x32/8x4096x128: of the read bandwidth": (0.88, 33554432 / 1.8e-3 / 20e9, True),
        "decode 1x32/8x4096x128: over PyTorch": (1.2, 4.0, True),
        "notebook 6x2: us": (4.0, 3.0, True),
        "matmul 512: over PyTorch": (1.0, 0.9, False),
        "matmul 96x128x64x128: over NumPy": (1.2, 1.2, True),
        "softmax 4096x1024: over ONNX Runtime": (1.1, 1.0, False),
        "geometric mean over PyTorch": (1.9, math.sqrt(1.1 * 4.0), True),
        strided: (1.05, 1.1, False),
    }
    assert {goal.what: (goal.wanted, goal.reached, goal.is_met) for goal in goals_of(run)} == {
        name: (wanted, pytest.approx(reached), is_met)
        for name, (wanted, reached, is_met) in expected.items()
    }


def test_a_forced_target_is_not_compared_with_other_engines():
    row = case_result("1x8x8192x64", regard=0.5, PyTorch=0.1)
    forced = {"target": "x86_v3", "targets": ["x86_v4", "x86_v3"]}
    run = table_run_of([row, row], machine=forced)
    assert {goal.what for goal in goals_of(run)} == {"1x8x8192x64: of the fma peak"}


@pytest.mark.parametrize(
    ("versions", "target", "count"),
    [
        ({"regard": "1", "NumPy": "2"}, "x86_v4", 2),
        ({"regard": "1", "NumPy": "2"}, "x86_v3", 0),
        ({"regard": "1", "NumPy": "2", "PyTorch": "3"}, "x86_v4", 0),
    ],
)
def test_numpy_alone_does_not_judge(versions, target, count):
    rows = [
        case_result("1x8x8192x64", regard=0.5, NumPy=5.0),
        case_result("notebook 6x2", regard=3e-6, NumPy=3e-5),
    ]
    machine = {"target": target, "targets": ["x86_v4", "x86_v3"]}
    run = table_run_of(rows, versions=versions, machine=machine)
    assert unjudged(run.results) == count
    assert not [goal.what for goal in goals_of(run) if "over" in goal.what]
