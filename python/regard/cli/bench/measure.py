"""The measuring, in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import cycle

import numpy as np

from regard import _core

from ..engines import ENGINES, Call, Engine, NotInstalledError, NotTimedError, Regard
from ..fresh_process import answer
from ..problems import Array, Attention, Inputs, Problem
from ..rounds import Runner, in_turns
from .cases import CASES, COMPARISONS, Case, Comparison
from .machine import describe, streamed_bytes
from .results import CaseResult, ComparisonResult, Results, Samples

# The largest error of an output, as a part of its largest element: an engine beyond it computed
# something else. float16's own rounding is 2^-11, int8's 2^-8 of the largest in a row.
_TOLERANCE = {"float32": 1e-4, "float16": 2e-3, "int8": 3e-2}


@dataclass(frozen=True)
class Request:
    """What one run measures."""

    cases: list[str]
    comparisons: list[str]
    threads: int
    rounds: int


class WrongResultError(Exception):
    """An output is not what float64 gives."""


class Bench:
    """One run: the engines that take part, and what is asked of them.

    Parameters
    ----------
    request : Request
        What is asked for.
    report : callable
        Told what is measured, and what of it, before that begins.
    """

    def __init__(self, request: Request, report: Callable[[str, str], None]) -> None:
        self._request = request
        self._report = report
        self._streamed_bytes = streamed_bytes()
        self._engines, self._missing = _load(request.threads)
        self._peak: list[float] = []
        self._bandwidth: list[float] = []

    def run(self) -> Results:
        """Measure the limits of the machine, the cases, the comparisons, and the limits again.

        Returns
        -------
        Results
            Every number.
        """
        started, date = time.perf_counter(), datetime.now(UTC)
        self._measure_limits()
        wanted = self._request
        cases = [self._measure(case) for case in CASES if case.name in wanted.cases]
        comparisons = [self._compare(row) for row in COMPARISONS if row.name in wanted.comparisons]
        self._measure_limits()
        return Results(
            date=date.isoformat(timespec="seconds"),
            machine=describe(),
            threads=wanted.threads,
            rounds=wanted.rounds,
            versions={engine.name: engine.version for engine in self._engines},
            missing=self._missing,
            peak=self._peak,
            bandwidth=self._bandwidth,
            streamed_bytes=self._streamed_bytes,
            seconds=time.perf_counter() - started,
            cases=cases,
            comparisons=comparisons,
        )

    def _measure_limits(self) -> None:
        threads = self._request.threads
        self._report("limits of the machine", "fma peak")
        self._peak.append(_core.fma_peak(False, threads))
        self._report("limits of the machine", "read bandwidth")
        self._bandwidth.append(_core.read_bandwidth(self._streamed_bytes, threads))

    def _measure(self, case: Case) -> CaseResult:
        self._report(case.name, "inputs")
        sets = make_sets(case.problem, self._streamed_bytes)
        index, expected = case.problem.sample(sets[0])
        runners: dict[str, Runner] = {}
        errors: dict[str, float] = {}
        left_out: dict[str, str] = {}
        first: Array | None = None
        for engine in self._engines:
            self._report(case.name, f"{engine.name}, checked")
            try:
                runner = runner_of(engine, case.problem, sets)
                output = _output(engine, runner)
                error = _check(output[index], expected, _TOLERANCE["float32"])
                # Beyond the rows that were sampled, all engines are held beside the first.
                first = output if first is None else first
                error = max(error, _check(output, first, _TOLERANCE["float32"]))
            except NotTimedError as reason:
                left_out[engine.name] = str(reason)
            except Exception as problem:
                left_out[engine.name] = _in_one_line(problem)
            else:
                runners[engine.name], errors[engine.name] = runner, error
        samples = self._in_turns(case.name, runners)
        return CaseResult(case.name, samples, errors, left_out)

    def _compare(self, row: Comparison) -> ComparisonResult:
        threads = row.threads or (self._request.threads,) * 2
        self._report(row.name, "inputs")
        runners: dict[str, Runner] = {}
        try:
            for name, problem, count in zip(
                ("it", "other"), (row.problem, row.beside), threads, strict=True
            ):
                engine, sets = Regard(count), make_sets(problem, self._streamed_bytes)
                runners[name] = runner_of(engine, problem, sets)
                index, expected = problem.sample(sets[0])
                tolerance = _TOLERANCE[_rounding(problem, sets[0])]
                _check(_output(engine, runners[name])[index], expected, tolerance)
        except Exception as error:
            return ComparisonResult(row.name, left_out=_in_one_line(error))
        samples = self._in_turns(row.name, runners)
        return ComparisonResult(row.name, samples["it"], samples["other"])

    def _in_turns(self, what: str, runners: dict[str, Runner]) -> dict[str, Samples]:
        rounds = self._request.rounds

        def report(name: str, number: int) -> None:
            self._report(what, f"{name}, round {number + 1} of {rounds}")

        seconds = in_turns(runners, rounds, on_turn=report)
        return {name: Samples(each) for name, each in seconds.items()}


def make_sets(problem: Problem, streamed: int) -> list[Inputs]:
    """Make the inputs of a problem, for calls that take turns on them.

    Parameters
    ----------
    problem : Problem
        What is timed.
    streamed : int
        How many bytes no cache holds.

    Returns
    -------
    list of tuple
        One set of inputs; where one query reads all keys, copies until no cache holds them.
    """
    inputs = problem.make_inputs()
    if not (isinstance(problem, Attention) and problem.is_decode):
        return [inputs]
    query, key, value, mask = inputs
    copies = math.ceil(streamed / problem.bytes) - 1
    return [inputs, *((query, key.copy(), value.copy(), mask) for _ in range(copies))]


def runner_of(engine: Engine, problem: Problem, sets: list[Inputs]) -> Runner:
    """Give what computes a problem, each call on the next of the sets."""
    calls = [problem.on(engine, inputs) for inputs in sets]
    return Runner(calls[0] if len(calls) == 1 else _in_rotation(calls), engine.around)


def _load(threads: int) -> tuple[list[Engine], dict[str, str]]:
    engines: list[Engine] = []
    missing: dict[str, str] = {}
    for load in ENGINES:
        try:
            engines.append(load(threads))
        except NotInstalledError as error:
            missing[load.name] = f"{error} is not installed"
        except Exception as error:
            if load is Regard:
                raise
            missing[load.name] = _in_one_line(error)
    return engines, missing


def _rounding(problem: Problem, inputs: Inputs) -> str:
    """Name the narrowest type that the problem's numbers pass through."""
    given: str = inputs[0].dtype.name
    named = getattr(problem, "precision", None), getattr(problem, "storage", None)
    return next((name for name in named if name is not None), given)


def _in_rotation(calls: list[Call]) -> Call:
    following = cycle(calls)
    return lambda: next(following)()


def _output(engine: Engine, runner: Runner) -> Array:
    with runner.around():
        return engine.as_array(runner.call())


def _check(output: Array, expected: Array, tolerance: float) -> float:
    if output.shape != expected.shape:
        raise WrongResultError(f"the shape is {output.shape}, not {expected.shape}")
    difference = output.astype(np.float64) - expected
    error = float(np.abs(difference).max() / np.abs(expected).max())
    if not error <= tolerance:  # NaN is wrong too
        raise WrongResultError(f"off by {error:.1e} of the largest element")
    return error


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


if __name__ == "__main__":
    answer(
        lambda request, send: asdict(
            Bench(Request(**request), lambda *what: send(list(what))).run()
        )
    )
