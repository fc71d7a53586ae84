"""The results of the table as a document in JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.table.goals import goals_of
from benchmarks.table.results import ComparisonResult, TableResults
from regard._bench.document import document_of


def table_document_of(table: TableResults, *, with_goals: bool = False) -> dict[str, Any]:
    """Return all results, and the numbers computed from them."""
    document = document_of(table.results)
    document["instructions"] = table.instructions
    document["comparisons"] = [_comparison(row) for row in table.comparisons]
    if with_goals:
        document["goals"] = [asdict(goal) | {"is_met": goal.is_met} for goal in goals_of(table)]
    return document


def _comparison(row: ComparisonResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "about": row.comparison.about,
        "ratio": row.ratio,
        "samples": None if row.samples is None else row.samples.rounds,
        "reference": None if row.reference is None else row.reference.rounds,
        "failed": row.failed,
    }
