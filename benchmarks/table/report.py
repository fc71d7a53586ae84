"""The results of the table as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.goals import RATIOS, goals_of, unjudged
from benchmarks.table.measuring import ComparisonResult, TableResults
from regard._bench.report import (
    INDENT,
    after_blank,
    cases_of,
    head_of,
    notes_of,
    table_of,
    titles_of,
    wrapped,
)


def list_of_cases() -> Iterator[str]:
    """Yield the names and the descriptions of all cases and comparisons."""
    cases = [["case", *(row.name for row in CASES)], ["", *(row.about for row in CASES)]]
    yield from table_of(cases, titles_of([row.group for row in CASES]), names=(0, 1))
    yield ""
    compared = ["regard against itself", *(row.name for row in COMPARISONS)]
    yield from table_of([compared, ["", *(row.about for row in COMPARISONS)]], names=(0, 1))


def table_report_of(table: TableResults, *, with_goals: bool = False) -> Iterator[str]:
    """Yield the lines of a report: the machine, the cases, the comparisons, notes, and goals."""
    yield from head_of(table.results)
    instructions = [f"{engine}: {what}" for engine, what in table.instructions.items()]
    yield from wrapped("instructions: " + ", ".join(instructions))
    yield from cases_of(table.results)
    if table.comparisons:
        yield ""
        columns = _comparison_columns(table.comparisons, with_goals)
        yield from table_of(columns, names=(0, len(columns) - 1))
    failures = [
        f"{row.name}: regard failed, {row.failed}" for row in table.comparisons if row.failed
    ]
    yield from after_blank(notes_of(table.results, failures))
    if with_goals:
        yield from after_blank(_goals(table))


def table_document_of(table: TableResults, *, with_goals: bool = False) -> dict[str, Any]:
    """Return all results, and the numbers computed from them."""
    document = table.results.document()
    document["instructions"] = table.instructions
    document["comparisons"] = [
        {
            "name": row.name,
            "about": row.comparison.about,
            "ratio": row.ratio,
            "samples": None if row.samples is None else row.samples.rounds,
            "reference": None if row.reference is None else row.reference.rounds,
            "failed": row.failed,
        }
        for row in table.comparisons
    ]
    if with_goals:
        document["goals"] = [asdict(goal) | {"is_met": goal.is_met} for goal in goals_of(table)]
    return document


def _comparison_columns(rows: list[ComparisonResult], with_goals: bool) -> list[list[str]]:
    ratios = ["failed" if row.ratio is None else f"{row.ratio:.2f}x" for row in rows]
    columns = [["regard against itself", *(row.name for row in rows)], ["ratio", *ratios]]
    if with_goals:
        columns.append(["goal", *(f"{_sign(row)} {RATIOS[row.name]:.2f}" for row in rows)])
    return [*columns, ["", *(row.comparison.about for row in rows)]]


def _sign(row: ComparisonResult) -> str:
    return ">=" if row.comparison.is_speed else "<="


def _goals(table: TableResults) -> Iterator[str]:
    goals = goals_of(table)
    missed = [goal for goal in goals if not goal.is_met]
    if goals:
        yield f"{INDENT}{len(goals) - len(missed)} of {len(goals)} goals met"
    if count := unjudged(table.results):
        yield from wrapped(
            f"not judged: {count} goals relative to the fastest other engine, "
            "as only NumPy is installed"
        )
    for goal in missed:
        sign = "at least" if goal.is_least else "at most"
        yield from wrapped(
            f"missed: {goal.what} {goal.reached:.2f}, wanted {sign} {goal.wanted:.2f}"
        )
