"""The measuring: which engines take part, what each is asked, whether its output is right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle

import numpy as np

from regard import _core
from regard._bench.cases import FORWARD, Case, Comparison
from regard._bench.engines import (
    ENGINES,
    Array,
    Call,
    Engine,
    NotInstalledError,
    NotOfferedError,
    Regard,
    TooLargeError,
)
from regard._bench.machine import describe, streamed_bytes
from regard._bench.problems import Attention, Inputs, Problem
from regard._bench.results import CaseResult, ComparisonResult, Results, Samples
from regard._bench.rounds import Runner, in_turns

# An engine whose next call would take longer is left out.
MAX_CALL_SECONDS = 10.0
# The largest error of an output, as a part of its largest element: beyond it an engine computed
# something else. The rounding of float16 is 2^-11, that of int8 2^-8 of the largest in a row.
_TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "int8": 3e-2}


@dataclass(frozen=True)
class Request:
    """What one run measures."""

    cases: Sequence[Case]
    threads: int
    rounds: int
    comparisons: Sequence[Comparison] = ()
    with_limits: bool = True


class WrongResultError(Exception):
    """An output is not what float64 gives."""


def measure(request: Request, report: Callable[[tuple[str, str]], None]) -> Results:
    """Measure the limits of the machine, the cases, the comparisons, and the limits again."""
    return _Run(request, report).results()


class _Run:
    """One run: the engines that take part, and how fast they have been so far."""

    def __init__(self, request: Request, report: Callable[[tuple[str, str]], None]) -> None:
        self._request = request
        self._report = report
        self._streamed_bytes = streamed_bytes()
        self._engines, self._missing, self._broken = _load(request.threads)
        self._peak: list[float] = []
        self._bandwidth: list[float] = []
        self._flops_per_second: dict[str, float] = {}

    def results(self) -> Results:
        started, date = time.perf_counter(), datetime.now(UTC)
        self._measure_limits()
        cases = [self._measure(case) for case in self._request.cases]
        comparisons = [self._compare(row) for row in self._request.comparisons]
        self._measure_limits()
        return Results(
            date=date.isoformat(timespec="seconds"),
            machine=describe(),
            threads=self._request.threads,
            rounds=self._request.rounds,
            versions={engine.name: engine.version for engine in self._engines},
            missing=self._missing,
            broken=self._broken,
            peak=self._peak,
            bandwidth=self._bandwidth,
            streamed_bytes=self._streamed_bytes,
            seconds=time.perf_counter() - started,
            cases=cases,
            comparisons=comparisons,
        )

    def _measure_limits(self) -> None:
        if not self._request.with_limits:
            return
        threads = self._request.threads
        self._report(("limits of the machine", "fma peak"))
        self._peak.append(_core.fma_peak(False, threads))
        self._report(("limits of the machine", "read bandwidth"))
        self._bandwidth.append(_core.read_bandwidth(self._streamed_bytes, threads))

    def _measure(self, case: Case) -> CaseResult:
        self._report((case.name, "inputs"))
        sets = make_sets(case.problem, self._streamed_bytes)
        index, expected = case.problem.sample(sets[0])
        runners: dict[str, Runner] = {}
        errors: dict[str, float] = {}
        left_out: dict[str, str] = {}
        failed: dict[str, str] = {}
        first: Array | None = None
        for engine in self._engines:
            seconds = self._expected_seconds(engine, case)
            if seconds > MAX_CALL_SECONDS:
                left_out[engine.name] = f"time: a call would take about {seconds:.0f} s"
                continue
            self._report((case.name, f"{engine.name}, checked"))
            try:
                runner = runner_of(engine, case.problem, sets)
                output = _output(engine, runner)
                error = _check(output[index], expected, _TOLERANCE["float32"])
                # The rows that were not sampled are compared with those of the first engine.
                first = output if first is None else first
                error = max(error, _check(output, first, _TOLERANCE["float32"]))
            except TooLargeError as reason:
                left_out[engine.name] = f"memory: {reason}"
            except NotOfferedError as reason:
                left_out[engine.name] = f"none: {reason}"
            except Exception as reason:
                failed[engine.name] = _in_one_line(reason)
            else:
                runners[engine.name], errors[engine.name] = runner, error
        result = CaseResult(case, self._in_turns(case.name, runners), errors, left_out, failed)
        if case.group == FORWARD:
            for name in runners:
                rate = result.rate(name) * 1e9
                self._flops_per_second[name] = max(rate, self._flops_per_second.get(name, 0.0))
        return result

    def _expected_seconds(self, engine: Engine, case: Case) -> float:
        """Estimate the time of a call from the engine's best speed so far; 0 where it has none."""
        if case.group != FORWARD or engine.name not in self._flops_per_second:
            return 0.0
        return case.problem.flops / self._flops_per_second[engine.name]

    def _compare(self, row: Comparison) -> ComparisonResult:
        threads = row.threads or (self._request.threads,) * 2
        self._report((row.name, "inputs"))
        runners: dict[str, Runner] = {}
        try:
            for name, problem, count in zip(
                ("problem", "reference"), (row.problem, row.reference), threads, strict=True
            ):
                engine, sets = Regard(count), make_sets(problem, self._streamed_bytes)
                runners[name] = runner_of(engine, problem, sets)
                index, expected = problem.sample(sets[0])
                tolerance = _TOLERANCE[_coarsest_type(problem, sets[0])]
                _check(_output(engine, runners[name])[index], expected, tolerance)
        except Exception as error:
            return ComparisonResult(row, failed=_in_one_line(error))
        samples = self._in_turns(row.name, runners)
        return ComparisonResult(row, samples["problem"], samples["reference"])

    def _in_turns(self, what: str, runners: dict[str, Runner]) -> dict[str, Samples]:
        rounds = self._request.rounds

        def report(name: str, number: int) -> None:
            self._report((what, f"{name}, round {number + 1} of {rounds}"))

        seconds = in_turns(runners, rounds, on_turn=report)
        return {name: Samples(each) for name, each in seconds.items()}


def make_sets(problem: Problem, streamed: int) -> list[Inputs]:
    """Make the inputs of a problem, in as many copies as its calls must take turns on.

    There is one, unless keys must come from memory: then no cache holds the keys of all copies.
    """
    inputs = problem.make_inputs()
    if not (isinstance(problem, Attention) and problem.streams_keys):
        return [inputs]
    query, key, value, mask = inputs
    copies = math.ceil(streamed / problem.bytes) - 1
    return [inputs, *((query, key.copy(), value.copy(), mask) for _ in range(copies))]


def runner_of(engine: Engine, problem: Problem, sets: list[Inputs]) -> Runner:
    """Return what computes a problem, each call on the next of the sets."""
    calls = [problem.on(engine, inputs) for inputs in sets]
    return Runner(calls[0] if len(calls) == 1 else _in_rotation(calls), engine.context)


def _load(threads: int) -> tuple[list[Engine], list[str], dict[str, str]]:
    """Return the engines that work, the names of those not installed, and why others failed."""
    engines: list[Engine] = []
    missing: list[str] = []
    broken: dict[str, str] = {}
    for load in ENGINES:
        try:
            engines.append(load(threads))
        except NotInstalledError:
            missing.append(load.name)
        except Exception as error:
            if load is Regard:
                raise
            broken[load.name] = _in_one_line(error)
    return engines, missing, broken


def _coarsest_type(problem: Problem, inputs: Inputs) -> str:
    """Name the narrowest type that the numbers of a problem pass through."""
    given: str = inputs[0].dtype.name
    named = getattr(problem, "precision", None), getattr(problem, "storage", None)
    return next((name for name in named if name is not None), given)


def _in_rotation(calls: list[Call]) -> Call:
    following = cycle(calls)
    return lambda: next(following)()


def _output(engine: Engine, runner: Runner) -> Array:
    with runner.context():
        return engine.as_array(runner.call())


def _check(output: Array, expected: Array, tolerance: float) -> float:
    if output.shape != expected.shape:
        raise WrongResultError(f"the shape is {output.shape}, not {expected.shape}")
    with np.errstate(invalid="ignore"):  # -inf, which hides, from itself
        difference = np.where(output == expected, 0, output.astype(np.float64) - expected)
    error = float(np.abs(difference).max() / np.abs(expected[np.isfinite(expected)]).max())
    if not error <= tolerance:  # NaN is wrong too
        raise WrongResultError(f"off by {error:.1e} of the largest element")
    return error


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
