"""The results of the table as text."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.table.cases import CASES, COMPARISONS
from benchmarks.table.goals import RATIOS, goals_of, unjudged
from benchmarks.table.results import ComparisonResult, TableResults
from regard._bench.report import cases_of, head_of, notes_of, titles_of
from regard._bench.text import INDENT, Column, after_blank, table_of, wrapped


def list_of_cases() -> Iterator[str]:
    """Yield the names and the descriptions of all cases and comparisons."""
    columns = [
        Column("case", [row.name for row in CASES], is_name=True),
        Column("", [row.about for row in CASES], is_name=True),
    ]
    yield from table_of(columns, titles_of([row.group for row in CASES]))
    yield ""
    yield from table_of(
        [
            Column("regard against itself", [row.name for row in COMPARISONS], is_name=True),
            Column("", [row.about for row in COMPARISONS], is_name=True),
        ]
    )


def table_report_of(table: TableResults, *, with_goals: bool = False) -> Iterator[str]:
    """Yield the lines of a report: the machine, the cases, the comparisons, notes, and goals."""
    yield from head_of(table.results)
    yield from wrapped("instructions: " + _instructions(table.instructions))
    yield from cases_of(table.results)
    if table.comparisons:
        yield ""
        yield from table_of(list(_comparison_columns(table.comparisons, with_goals)))
    yield from after_blank(_notes(table))
    if with_goals:
        yield from after_blank(_goals(table))


def _instructions(of: dict[str, str]) -> str:
    return ", ".join(f"{engine}: {what}" for engine, what in of.items())


def _notes(table: TableResults) -> Iterator[str]:
    failed = [row for row in table.comparisons if row.failed]
    failures = [f"{row.name}: regard failed, {row.failed}" for row in failed]
    return notes_of(table.results, failures)


def _comparison_columns(rows: list[ComparisonResult], with_goals: bool) -> Iterator[Column]:
    yield Column("regard against itself", [row.name for row in rows], is_name=True)
    yield Column("ratio", ["failed" if row.ratio is None else f"{row.ratio:.2f}x" for row in rows])
    if with_goals:
        yield Column("goal", [f"{_sign(row)} {RATIOS[row.name]:.2f}" for row in rows])
    yield Column("", [row.comparison.about for row in rows], is_name=True)


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
