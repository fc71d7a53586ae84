"""Check the outputs of all engines, then time them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle

import numpy as np

from regard import _core
from regard._bench.cases import FORWARD, Case
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
from regard._bench.results import CaseResult, Results, Samples
from regard._bench.rounds import Runner, in_turns

# An engine is left out if its next call would take longer.
MAX_CALL_SECONDS = 10.0
# The largest allowed error of an output in float32, relative to the largest element.
TOLERANCE = 1e-4

Report = Callable[[tuple[str, str]], None]


@dataclass(frozen=True)
class Request:
    """The cases and the conditions of a run."""

    cases: Sequence[Case]
    threads: int
    rounds: int
    with_limits: bool = True


class WrongResultError(Exception):
    """An output differs from the result in float64."""


def measure(request: Request, report: Report) -> Results:
    """Measure the limits of the machine, the cases, and the limits again."""
    run = Run(request, report, ENGINES)
    with run.limits():
        cases = [run.case(case) for case in request.cases]
    return run.results(cases)


class Run:
    """One run: its engines, and how fast they have been so far."""

    def __init__(self, request: Request, report: Report, engines: Sequence[type[Engine]]) -> None:
        self.request = request
        self.report = report
        self.streamed_bytes = streamed_bytes()
        self._started, self._date = time.perf_counter(), datetime.now(UTC)
        self._engines, self._missing, self._broken = _load(engines, request.threads)
        self._peak: list[float] = []
        self._bandwidth: list[float] = []
        self._flops_per_second: dict[str, float] = {}

    def results(self, cases: list[CaseResult]) -> Results:
        """Return the results of the run."""
        return Results(
            date=self._date.isoformat(timespec="seconds"),
            machine=describe(),
            threads=self.request.threads,
            rounds=self.request.rounds,
            versions={engine.name: engine.version for engine in self._engines},
            missing=self._missing,
            broken=self._broken,
            peak=self._peak,
            bandwidth=self._bandwidth,
            streamed_bytes=self.streamed_bytes,
            seconds=time.perf_counter() - self._started,
            cases=cases,
        )

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Measure the limits of the machine before and after the cases."""
        self._measure_limits()
        yield
        self._measure_limits()

    def _measure_limits(self) -> None:
        if not self.request.with_limits:
            return
        threads = self.request.threads
        self.report(("limits of the machine", "fma peak"))
        self._peak.append(_core.fma_peak(False, threads))
        self.report(("limits of the machine", "read bandwidth"))
        self._bandwidth.append(_core.read_bandwidth(self.streamed_bytes, threads))

    def case(self, case: Case) -> CaseResult:
        """Check and time all engines in one case."""
        self.report((case.name, "inputs"))
        sets = make_sets(case.problem, self.streamed_bytes)
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
            self.report((case.name, f"{engine.name}, checked"))
            try:
                runner = runner_of(engine, case.problem, sets)
                output = output_of(engine, runner)
                error = check(output[index], expected, TOLERANCE)
                # The other rows are compared with the rows of the first engine.
                first = output if first is None else first
                error = max(error, check(output, first, TOLERANCE))
            except TooLargeError as reason:
                left_out[engine.name] = f"memory: {reason}"
            except NotOfferedError as reason:
                left_out[engine.name] = f"none: {reason}"
            except Exception as reason:
                failed[engine.name] = in_one_line(reason)
            else:
                runners[engine.name], errors[engine.name] = runner, error
        result = CaseResult(case, self.in_turns(case.name, runners), errors, left_out, failed)
        if case.group == FORWARD:
            for name in runners:
                rate = result.rate(name) * 1e9
                self._flops_per_second[name] = max(rate, self._flops_per_second.get(name, 0.0))
        return result

    def _expected_seconds(self, engine: Engine, case: Case) -> float:
        """Estimate the time of a call from the best speed of the engine so far, or return 0."""
        if case.group != FORWARD or engine.name not in self._flops_per_second:
            return 0.0
        return case.problem.flops / self._flops_per_second[engine.name]

    def in_turns(self, what: str, runners: dict[str, Runner]) -> dict[str, Samples]:
        """Time interleaved calls, and report progress."""
        rounds = self.request.rounds

        def report(name: str, number: int) -> None:
            self.report((what, f"{name}, round {number + 1} of {rounds}"))

        seconds = in_turns(runners, rounds, on_turn=report)
        return {name: Samples(each) for name, each in seconds.items()}


def make_sets(problem: Problem, streamed: int) -> list[Inputs]:
    """Return the inputs of a problem, in several copies if keys must be read from memory.

    Calls cycle through the copies, which together are larger than all caches.
    """
    inputs = problem.make_inputs()
    if not (isinstance(problem, Attention) and problem.streams_keys):
        return [inputs]
    query, key, value, mask = inputs
    copies = math.ceil(streamed / problem.bytes) - 1
    return [inputs, *((query, key.copy(), value.copy(), mask) for _ in range(copies))]


def runner_of(engine: Engine, problem: Problem, sets: list[Inputs]) -> Runner:
    """Return the runner of a problem. Each call uses the next set."""
    calls = [problem.on(engine, inputs) for inputs in sets]
    return Runner(calls[0] if len(calls) == 1 else _in_rotation(calls), engine.context)


def _load(
    wanted: Sequence[type[Engine]], threads: int
) -> tuple[list[Engine], list[str], dict[str, str]]:
    """Return the working engines, the names of missing engines, and why others failed."""
    engines: list[Engine] = []
    missing: list[str] = []
    broken: dict[str, str] = {}
    for load in wanted:
        try:
            engines.append(load(threads))
        except NotInstalledError:
            missing.append(load.name)
        except Exception as error:
            if issubclass(load, Regard):
                raise
            broken[load.name] = in_one_line(error)
    return engines, missing, broken


def _in_rotation(calls: list[Call]) -> Call:
    following = cycle(calls)
    return lambda: next(following)()


def output_of(engine: Engine, runner: Runner) -> Array:
    """Return the result of a call as an array."""
    with runner.context():
        return engine.as_array(runner.call())


def check(output: Array, expected: Array, tolerance: float) -> float:
    """Return the error relative to the largest element. Raises WrongResultError."""
    if output.shape != expected.shape:
        raise WrongResultError(f"the shape is {output.shape}, not {expected.shape}")
    with np.errstate(invalid="ignore"):  # -inf minus -inf
        difference = np.where(output == expected, 0, output.astype(np.float64) - expected)
    error = float(np.abs(difference).max() / np.abs(expected[np.isfinite(expected)]).max())
    if not error <= tolerance:  # NaN is wrong too
        raise WrongResultError(f"off by {error:.1e} of the largest element")
    return error


def in_one_line(error: Exception) -> str:
    """Return the type and the message of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
