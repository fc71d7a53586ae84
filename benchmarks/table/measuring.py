"""Measure the table: the cases, and the comparisons of regard with itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.table.cases import Comparison
from benchmarks.table.engines import ENGINES, Regard
from benchmarks.table.instructions import instructions_of
from benchmarks.table.results import ComparisonResult, TableResults
from regard._bench.measuring import (
    TOLERANCE,
    Report,
    Request,
    Run,
    check,
    in_one_line,
    make_sets,
    output_of,
    runner_of,
)
from regard._bench.problems import Inputs, Problem
from regard._bench.rounds import Runner

# The rounding error is 2^-11 for float16, 2^-8 for bfloat16, 2^-8 of the largest element in a row
# for int8, 2^-4 for float8, and 1/30 of the range of 32 elements for q4_1.
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "bfloat16": 2e-2, "int8": 3e-2}
TOLERANCES |= {"float8_e4m3fn": 0.1, "q4_1": 0.2}


@dataclass(frozen=True)
class TableRequest(Request):
    """The cases, the comparisons and the conditions of a run."""

    comparisons: Sequence[Comparison] = ()


def measure_table(request: TableRequest, report: Report) -> TableResults:
    """Measure the limits of the machine, the cases, the comparisons, and the limits again."""
    run = Run(request, report, ENGINES)
    with run.limits():
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
            index, expected = problem.sample(sets[0])
            tolerance = TOLERANCES[_coarsest_type(problem, sets[0])]
            check(output_of(engine, runners[name])[index], expected, tolerance)
    except Exception as error:
        return ComparisonResult(row, failed=in_one_line(error))
    samples = run.in_turns(row.name, runners)
    return ComparisonResult(row, samples["problem"], samples["reference"])


def _coarsest_type(problem: Problem, inputs: Inputs) -> str:
    """Return the name of the narrowest type in which a problem is computed or stored."""
    given: str = inputs[0].dtype.name
    named = getattr(problem, "precision", None), getattr(problem, "storage", None)
    return next((name for name in named if name is not None), given)
