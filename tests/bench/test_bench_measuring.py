"""Test the measuring: every ranked engine is checked, and no engine runs a call that takes too
long."""

from functools import partial

import numpy as np
import pytest
from benchmarks.table import measuring as table
from benchmarks.table.attention import Variant
from benchmarks.table.caches import Append, CachedAttention
from benchmarks.table.cases import COMPARISONS, Comparison
from benchmarks.table.measuring import TableRequest, measure_table

import regard
from regard._bench import measuring
from regard._bench.engines import LeftOutError, Regard
from regard._bench.measuring import Request, measure
from regard._bench.problems import Attention, parse_curve, parse_shape
from regard._bench.rounds import in_turns
from stand_ins import FakeEngine, engine_named, engine_that_raises

SMALL = parse_shape("1,2,16,8")


@pytest.fixture
def run(monkeypatch):
    """Measure with regard and the engines of a test."""

    def run(*peers, cases=(SMALL,), rounds=1):
        monkeypatch.setattr(measuring, "ENGINES", (Regard, *peers))
        monkeypatch.setattr(measuring, "in_turns", partial(in_turns, settle=0))
        return measure(Request(cases, 1, rounds, with_limits=False), said.append)

    said = run.said = []
    return run


@pytest.fixture
def compare(monkeypatch):
    """Measure one case with regard, one engine and a comparison."""

    def compare(peer, comparison):
        monkeypatch.setattr(measuring, "ENGINES", (Regard, peer))
        monkeypatch.setattr(measuring, "in_turns", partial(in_turns, settle=0))
        request = TableRequest((SMALL,), 1, 1, False, [comparison])
        return measure_table(request, said.append)

    said = compare.said = []
    return compare


def wrong_sign(output):
    return -output


def wrong_in_one_place(output):
    output[0, 0, 1] *= 1.01  # in a row that is not sampled
    return output


def not_a_number(output):
    output[0, 0, 0, 0] = np.nan
    return output


def half(output):
    return output[..., :1]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (wrong_sign, "WrongResultError: off by 2.0e+00 of the largest element"),
        (wrong_in_one_place, "WrongResultError: off by"),
        (not_a_number, "WrongResultError: off by nan"),
        (half, "WrongResultError: the shape is (1, 2, 4, 1), not (1, 2, 4, 8)"),
    ],
)
def test_a_wrong_engine_is_reported_and_not_ranked(run, spoil, reason):
    spoiled = engine_named("ONNX Runtime", spoil=spoil)
    results = run(engine_named("PyTorch"), spoiled, rounds=2)
    (row,) = results.cases
    assert list(row.samples) == list(row.errors) == ["regard", "PyTorch"]
    assert row.best_peer == "PyTorch"
    assert row.failed["ONNX Runtime"].startswith(reason)
    assert all(len(samples.rounds) == 2 for samples in row.samples.values())
    assert results.is_sound


def test_a_wrong_regard_is_not_sound(compare, monkeypatch):
    right = regard.scaled_dot_product_attention
    monkeypatch.setattr(regard, "scaled_dot_product_attention", lambda *a, **b: -right(*a, **b))
    comparison = Comparison("one", SMALL.problem, SMALL.problem, "")
    results = compare(engine_named("NumPy"), comparison)
    (case,) = results.results.cases
    assert case.failed["regard"].startswith("WrongResultError")
    assert list(case.samples) == ["NumPy"]
    assert results.comparisons[0].failed.startswith("WrongResultError")
    assert results.comparisons[0].ratio is None
    assert not results.is_sound


def test_missing_and_broken_engines_leave_the_others(run):
    results = run(
        engine_named("NumPy"),
        engine_that_raises("PyTorch", ModuleNotFoundError(name="missing")),
        engine_that_raises("ONNX Runtime", ImportError("a library\n is missing")),
    )
    assert results.missing == ["PyTorch"]
    assert results.broken == {"ONNX Runtime": "ImportError: a library is missing"}
    assert list(results.versions) == ["regard", "NumPy"]


def test_what_would_take_too_long_or_too_much_is_left_out(run, monkeypatch):
    class Large(FakeEngine):
        name = "NumPy"

        def attention(self, *inputs, is_causal=False):
            raise LeftOutError("memory: its scores need 8.6 GB")

    cases = parse_curve("1,1,8", [16, 32])
    asked = []
    slow = engine_named("PyTorch", on_call=lambda query, *_: asked.append(query.shape[2]))
    # With a time limit of 0, every engine that has a speed is too slow.
    monkeypatch.setattr(measuring, "MAX_CALL_SECONDS", 0.0)
    results = run(Large, slow, cases=cases)
    first, second = results.cases
    assert first.left_out == {"NumPy": "memory: its scores need 8.6 GB"}
    assert list(first.samples) == ["regard", "PyTorch"]
    assert second.samples == {}
    assert second.left_out["regard"].startswith("time: a call would take about ")
    assert set(asked) == {16}
    assert results.is_sound


def test_the_run_says_what_it_does(compare):
    comparison = COMPARISONS[0]
    small = Comparison(comparison.name, SMALL.problem, SMALL.problem, comparison.about)
    results = compare(engine_named("Fake"), small)
    assert compare.said[:3] == [
        (SMALL.name, "inputs"),
        (SMALL.name, "regard, checked"),
        (SMALL.name, "Fake, checked"),
    ]
    assert (small.name, "reference, round 1 of 1") in compare.said
    assert results.comparisons[0].ratio > 0
    assert results.results.peak == results.results.bandwidth == []


def test_what_is_resident_is_not_copied():
    problem = Attention(1, 4, 2, 1, 9, 3, is_resident=True)
    assert len(measuring.make_sets(problem, 1 << 20)) == 1


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Variant(1, 1, 1, 2, 2, 4, dtype="float16"), "float16"),
        (Variant(1, 1, 1, 2, 2, 4, precision="int8"), "int8"),
        (CachedAttention(1, 1, 1, 1, 2, 4, storage="int8"), "int8"),
        (Append(1, 2, 4), "float32"),
    ],
)
def test_an_output_may_be_as_coarse_as_its_numbers(problem, name):
    assert table._coarsest_type(problem, problem.make_inputs()) == name


def test_decoding_goes_round_more_keys_than_a_cache_holds():
    problem = Attention(1, 4, 2, 1, 9, 3)
    sets = measuring.make_sets(problem, 10 * problem.bytes - 1)
    assert len(sets) == 10
    assert len({id(array) for _, key, value in sets for array in (key, value)}) == 20
    assert len(measuring.make_sets(SMALL.problem, 1 << 20)) == 1
    called = []
    engine = FakeEngine(1, on_call=lambda query, key, *_: called.append(id(key)))
    call = measuring.runner_of(engine, problem, sets).call
    for _ in range(20):
        call()
    assert called == [id(key) for _, key, _ in sets] * 2
