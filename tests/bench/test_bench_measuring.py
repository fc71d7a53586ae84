"""Measuring: every ranked engine is checked, none runs a call that takes too long, engines settle
and are interleaved, and the work runs in a fresh process."""

import os
import signal
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from benchmarks.table.cases import Comparison
from benchmarks.table.measuring import TableRequest, measure_table
from benchmarks.table.stages import ApplyMask, Matmul, Softmax

import regard
from regard._bench import engines, measuring, rounds
from regard._bench.engines import ENGINES, LeftOutError, NumPy, Regard
from regard._bench.fresh_process import run_in_fresh_process
from regard._bench.measuring import Request, measure
from regard._bench.problems import FORWARD, Attention, Case, parse_shape
from regard._bench.rounds import Runner, in_turns
from stand_ins import engine_named

SMALL = parse_shape("1,2,16,8")


@pytest.mark.parametrize("load", ENGINES)
@pytest.mark.parametrize(
    "problem",
    [
        Attention(2, 4, 2, 7, 7, 5),
        Attention(1, 4, 2, 6, 6, 4, is_causal=True),
        Attention(1, 4, 2, 5, 9, 3, value_dim=7),
        Matmul(3, 5, 7, batch=4),
        Softmax(3, 5, axis=0),
        ApplyMask(3, 5),
    ],
)
def test_engines_compute_the_same(load, problem):
    for package in load.packages:
        pytest.importorskip(package)
    engine, inputs = load(1), problem.make_inputs()
    index, expected = problem.sample(inputs)
    with engine.context():
        output = engine.as_array(problem.on(engine, inputs)())
    assert output.dtype == np.float32
    np.testing.assert_allclose(output[index], expected, rtol=1e-5, atol=1e-6)


def test_scores_take_at_most_a_quarter_of_the_free_memory(monkeypatch):
    query = np.zeros((1, 1, 16, 4), dtype=np.float32)
    monkeypatch.setattr(engines, "available_memory", lambda: 4 * 16 * 16 * 4)
    NumPy(1).attention(query, query, query)
    monkeypatch.setattr(engines, "available_memory", lambda: 4 * 16 * 16 * 4 - 1)
    with pytest.raises(LeftOutError, match="memory: its scores need"):
        NumPy(1).attention(query, query, query)


@pytest.fixture
def run(monkeypatch):
    """Measure with regard and the engines of a test."""

    def run(*peers, cases=(SMALL,), rounds=1, comparison=None):
        monkeypatch.setattr(measuring, "ENGINES", (Regard, *peers))
        monkeypatch.setattr(measuring, "in_turns", partial(in_turns, settle=0))
        if comparison:
            return measure_table(TableRequest(cases, 1, rounds, False, [comparison]), said.append)
        return measure(Request(cases, 1, rounds, with_limits=False), said.append)

    said = []
    return run


def wrong_in_one_place(output):
    output[0, 0, 1] *= 1.01  # in a row that is not sampled
    return output


def not_a_number(output):
    output[0, 0, 0, 0] = np.nan
    return output


@pytest.mark.parametrize(
    "spoil", [wrong_in_one_place, not_a_number, np.negative, lambda output: output[..., :1]]
)
def test_a_wrong_engine_is_reported_and_not_ranked(run, spoil):
    spoiled = engine_named("ONNX Runtime", spoil=spoil)
    results = run(engine_named("PyTorch"), spoiled, rounds=2)
    (row,) = results.cases
    assert list(row.samples) == list(row.errors) == ["regard", "PyTorch"]
    assert row.best_peer == "PyTorch"
    assert row.failed["ONNX Runtime"].startswith("WrongResultError: ")
    assert all(len(samples.rounds) == 2 for samples in row.samples.values())
    assert results.is_sound


def test_a_wrong_regard_is_not_sound(run, monkeypatch):
    right = regard.scaled_dot_product_attention
    monkeypatch.setattr(regard, "scaled_dot_product_attention", lambda *a, **b: -right(*a, **b))
    comparison = Comparison("one", SMALL.problem, SMALL.problem, "")
    results = run(engine_named("NumPy"), comparison=comparison)
    (case,) = results.results.cases
    assert list(case.samples) == ["NumPy"]
    assert case.failed["regard"].startswith("WrongResultError")
    assert results.comparisons[0].ratio is None
    assert not results.is_sound


def test_missing_broken_and_slow_engines_leave_the_others(run, monkeypatch):
    class Large(engine_named("NumPy")):
        def attention(self, *inputs, is_causal=False):
            raise LeftOutError("memory: its scores need 8.6 GB")

    results = run(
        Large,
        engine_named("PyTorch", error=ModuleNotFoundError(name="missing")),
        engine_named("ONNX Runtime", error=ImportError("a library\n is missing")),
    )
    assert results.missing == ["PyTorch"]
    assert results.broken == {"ONNX Runtime": "ImportError: a library is missing"}
    assert results.cases[0].left_out == {"NumPy": "memory: its scores need 8.6 GB"}
    # With a time limit of 0, every engine that has a speed is too slow.
    monkeypatch.setattr(measuring, "MAX_CALL_SECONDS", 0.0)
    asked = []
    slow = engine_named("PyTorch", on_call=lambda query, *_: asked.append(query.shape[2]))
    problems = (Attention(1, 1, 1, length, length, 8) for length in (16, 32))
    cases = [Case(problem.name, FORWARD, problem) for problem in problems]
    first, second = run(slow, cases=cases).cases
    assert list(first.samples) == ["regard", "PyTorch"]
    assert second.samples == {}
    assert second.left_out["regard"].startswith("time: a call would take about ")
    assert set(asked) == {16}


class Clock:
    """A clock that stops unless it is told to advance."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize(
    ("seconds", "settling", "samples", "calls"),
    [(2.0**-14, 2**12, 20, 16), (1.0, 1, 1, 1)],  # several short calls are a sample
)
def test_each_engine_settles_before_it_is_timed(monkeypatch, seconds, settling, samples, calls):
    clock = Clock()
    monkeypatch.setattr(rounds, "time", clock)
    order = []

    @contextmanager
    def around(name):
        order.append(name.upper())
        yield

    def call(name):
        order.append(name)
        clock.now += seconds

    runners = {name: Runner(partial(call, name), partial(around, name)) for name in "ab"}
    timed = in_turns(runners, 2)
    assert timed == {name: [[pytest.approx(seconds)] * samples] * 2 for name in "ab"}
    a_turn = settling + samples * calls
    assert order == list("A" + "a" * a_turn + "B" + "b" * a_turn) * 2


# The process must be able to import what it runs: functions of this module.


def talk(request, send):
    print("noise")
    os.system("echo more noise")
    send([request, 1])
    return [os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "REGARD_NUM_THREADS", "EXTRA")]


def sleep(_request, _send):
    time.sleep(60)


def fail(_request, _send):
    raise ValueError("what\n is wrong")


def die(_request, _send):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_fresh_process_has_its_own_threads_and_settings(monkeypatch, capfd):
    monkeypatch.setenv("REGARD_NUM_THREADS", "7")
    heard, options = [], {"threads": 3, "patience": 60, "environment": {"EXTRA": "yes"}}
    answer = run_in_fresh_process(talk, {"x": "\u65e5"}, on_message=heard.append, **options)
    assert answer == ["3", "3", "yes"]
    assert heard == [[{"x": "\u65e5"}, 1]]
    assert capfd.readouterr() == ("", "")
    assert (os.environ["REGARD_NUM_THREADS"], os.environ.get("EXTRA")) == ("7", None)


@pytest.mark.parametrize(
    ("work", "patience", "message"),
    [
        (fail, 60, "the timing failed: ValueError: what is wrong"),
        (die, 60, "the timing was killed by SIGKILL"),
        (sleep, 0.5, "the timing was silent for 0.5 s"),
    ],
)
def test_a_process_that_does_not_answer(work, patience, message):
    with pytest.raises(RuntimeError) as caught:
        run_in_fresh_process(work, 0, threads=1, patience=patience)
    assert str(caught.value) == message
