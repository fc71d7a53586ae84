"""Check the outputs of all engines, then time them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import numpy as np

from regard import _core
from regard._bench.engines import ENGINES, Array, Engine, LeftOutError, Regard
from regard._bench.fresh_process import in_one_line
from regard._bench.machine import describe, streamed_bytes
from regard._bench.problems import FORWARD, Attention, Case, Inputs
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
    run = Run(request, report)
    return run.results([run.case(case) for case in request.cases])


class Run:
    """One run: its engines, how fast they have been so far, and the limits of the machine.

    The limits are measured at the start and by `results`, and not at all without `with_limits`.
    """

    def __init__(self, request: Request, report: Report) -> None:
        self.request = request
        self.report = report
        self.streamed_bytes = streamed_bytes()
        self._started, self._date = time.perf_counter(), datetime.now(UTC)
        self._missing: list[str] = []
        self._broken: dict[str, str] = {}
        self._engines = [engine for each in ENGINES if (engine := self._loaded(each))]
        self._flops_per_second: dict[str, float] = {}
        self._peak: list[float] = []
        self._bandwidth: list[float] = []
        self._measure_limits()

    def _loaded(self, load: type[Engine]) -> Engine | None:
        try:
            return load(self.request.threads)
        except Exception as error:
            if issubclass(load, Regard):
                raise
            if isinstance(error, ModuleNotFoundError) and error.name in load.packages:
                self._missing.append(load.name)
            else:
                self._broken[load.name] = in_one_line(error)
            return None

    def results(self, cases: list[CaseResult]) -> Results:
        """Return the results of the run."""
        self._measure_limits()
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

    def _measure_limits(self) -> None:
        if self.request.with_limits:
            threads = self.request.threads
            self.report(("limits of the machine", "fma peak"))
            self._peak.append(_core.fma_peak(False, threads))
            self.report(("limits of the machine", "read bandwidth"))
            self._bandwidth.append(_core.read_bandwidth(self.streamed_bytes, threads))

    def case(self, case: Case) -> CaseResult:
        """Check and time all engines in one case."""
        self.report((case.name, "inputs"))
        sets = make_sets(case.problem, self.streamed_bytes)
        sample = case.problem.sample(sets[0])
        runners: dict[str, Runner] = {}
        errors: dict[str, float] = {}
        left_out: dict[str, str] = {}
        failed: dict[str, str] = {}
        first: Array | None = None
        for engine in self._engines:
            name = engine.name
            # Estimated from the best speed of the engine so far.
            rate = self._flops_per_second.get(name) if case.group == FORWARD else None
            if rate and (seconds := case.problem.flops / rate) > MAX_CALL_SECONDS:
                left_out[name] = f"time: a call would take about {seconds:.0f} s"
                continue
            self.report((case.name, f"{name}, checked"))
            try:
                runner = runner_of(engine, case.problem, sets)
                output, error = checked(engine, runner, sample, TOLERANCE)
                # The other rows are compared with the rows of the first engine.
                first = output if first is None else first
                errors[name] = max(error, error_of(output, first, TOLERANCE))
                runners[name] = runner
            except LeftOutError as reason:
                left_out[name] = str(reason)
            except Exception as reason:
                failed[name] = in_one_line(reason)
        result = CaseResult(case, self.in_turns(case.name, runners), errors, left_out, failed)
        if case.group == FORWARD:
            for name in runners:
                rate = result.rate(name) * 1e9
                self._flops_per_second[name] = max(rate, self._flops_per_second.get(name, 0.0))
        return result

    def in_turns(self, what: str, runners: dict[str, Runner]) -> dict[str, Samples]:
        """Time interleaved calls, and report progress."""
        rounds = self.request.rounds

        def report(name: str, number: int) -> None:
            self.report((what, f"{name}, round {number + 1} of {rounds}"))

        seconds = in_turns(runners, rounds, on_turn=report)
        return {name: Samples(each) for name, each in seconds.items()}


def make_sets(problem: Any, streamed: int) -> list[Inputs]:
    """Return the inputs of a problem, in several copies if keys must be read from memory.

    Calls cycle through the copies, which together are larger than all caches.
    """
    inputs = problem.make_inputs()
    if not (isinstance(problem, Attention) and problem.streams_keys):
        return [inputs]
    query, key, value, *rest = inputs
    copies = math.ceil(streamed / problem.bytes) - 1
    return [inputs, *((query, key.copy(), value.copy(), *rest) for _ in range(copies))]


def runner_of(engine: Engine, problem: Any, sets: list[Inputs]) -> Runner:
    """Return the runner of a problem. Each call uses the next set."""
    calls = [problem.on(engine, inputs) for inputs in sets]
    following = cycle(calls)
    return Runner(calls[0] if len(calls) == 1 else lambda: next(following)(), engine.context)


def checked(
    engine: Engine, runner: Runner, sample: tuple[Any, Array], tolerance: float
) -> tuple[Array, float]:
    """Return the output of a call, and the error of a sample of its rows."""
    index, expected = sample
    with runner.context():
        output = engine.as_array(runner.call())
    return output, error_of(output[index], expected, tolerance)


def error_of(output: Array, expected: Array, tolerance: float) -> float:
    """Return the error relative to the largest element. Raises WrongResultError."""
    if output.shape != expected.shape:
        raise WrongResultError(f"the shape is {output.shape}, not {expected.shape}")
    with np.errstate(invalid="ignore"):  # -inf minus -inf
        difference = np.where(output == expected, 0, output.astype(np.float64) - expected)
    error = float(np.abs(difference).max() / np.abs(expected[np.isfinite(expected)]).max())
    if not error <= tolerance:  # NaN is wrong too
        raise WrongResultError(f"off by {error:.1e} of the largest element")
    return error
