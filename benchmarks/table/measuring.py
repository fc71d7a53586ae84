"""Measure the table: the cases, and the comparisons of regard with itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.table.cases import Comparison
from benchmarks.table.instructions import instructions_of
from regard._bench.engines import Regard
from regard._bench.fresh_process import in_one_line
from regard._bench.measuring import (
    TOLERANCE,
    Report,
    Request,
    Run,
    checked,
    make_sets,
    runner_of,
)
from regard._bench.problems import Inputs
from regard._bench.results import Results, Samples
from regard._bench.rounds import Runner

# The rounding error is 2^-11 for float16, 2^-8 for bfloat16, 2^-8 of the largest element in a row
# for int8, 2^-4 for float8, and 1/30 of the range of 32 elements for q4_1.
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "bfloat16": 2e-2, "int8": 3e-2}
TOLERANCES |= {"float8_e4m3fn": 0.1, "q4_1": 0.2}


@dataclass(frozen=True)
class TableRequest(Request):
    """The cases, the comparisons and the conditions of a run."""

    comparisons: Sequence[Comparison] = ()


@dataclass(frozen=True)
class ComparisonResult:
    """The times of regard in one comparison, or the reason for the failure."""

    comparison: Comparison
    samples: Samples | None = None
    reference: Samples | None = None
    failed: str = ""

    @property
    def name(self) -> str:
        """The name of the comparison."""
        return self.comparison.name

    @property
    def ratio(self) -> float | None:
        """The ratio of the comparison, or None if it failed."""
        if self.samples is None or self.reference is None:
            return None
        row = self.comparison
        expected = self.reference.seconds
        if row.for_equal_work:
            expected *= row.problem.flops / row.reference.flops
        ratio = self.samples.seconds / expected
        return 1 / ratio if row.is_speed else ratio


@dataclass(frozen=True)
class TableResults:
    """The results of the cases and of the comparisons."""

    results: Results
    comparisons: list[ComparisonResult]
    instructions: dict[str, str]  # as the other engines report them

    @property
    def is_sound(self) -> bool:
        """Whether all results of regard were right."""
        return self.results.is_sound and not any(row.failed for row in self.comparisons)


def measure_table(request: TableRequest, report: Report) -> TableResults:
    """Measure the limits of the machine, the cases, the comparisons, and the limits again."""
    run = Run(request, report)
    cases = [run.case(case) for case in request.cases]
    comparisons = [_compare(run, row) for row in request.comparisons]
    results = run.results(cases)
    return TableResults(results, comparisons, instructions_of(results.versions))


def _compare(run: Run, row: Comparison) -> ComparisonResult:
    threads = row.threads or (run.request.threads,) * 2
    run.report((row.name, "inputs"))
    runners: dict[str, Runner] = {}
    try:
        for name, problem, count in zip(
            ("problem", "reference"), (row.problem, row.reference), threads, strict=True
        ):
            engine, sets = Regard(count), make_sets(problem, run.streamed_bytes)
            runners[name] = runner_of(engine, problem, sets)
            tolerance = TOLERANCES[_coarsest_type(problem, sets[0])]
            checked(engine, runners[name], problem.sample(sets[0]), tolerance)
    except Exception as error:
        return ComparisonResult(row, failed=in_one_line(error))
    samples = run.in_turns(row.name, runners)
    return ComparisonResult(row, samples["problem"], samples["reference"])


def _coarsest_type(problem: Any, inputs: Inputs) -> str:
    """Return the name of the narrowest type in which a problem is computed or stored."""
    given: str = inputs[0].dtype.name
    named = getattr(problem, "precision", None), getattr(problem, "storage", None)
    return next((name for name in named if name is not None), given)
