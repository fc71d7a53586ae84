"""The results as JSON can represent them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from regard._bench.goals import goals_of
from regard._bench.results import CaseResult, ComparisonResult, Results


def document_of(results: Results, *, with_goals: bool = False) -> dict[str, Any]:
    """Return everything that was measured, and what follows from it."""
    document = asdict(results) | {
        "cases": [_case(results, row) for row in results.cases],
        "comparisons": [_comparison(row) for row in results.comparisons],
    }
    if with_goals:
        document["goals"] = [asdict(goal) | {"is_met": goal.is_met} for goal in goals_of(results)]
    return document


def _case(results: Results, row: CaseResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "group": row.case.group.title,
        "problem": asdict(row.case.problem),
        "flops": row.case.problem.flops,
        "bytes": row.case.problem.bytes,
        "unit": row.case.group.unit,
        "limit": row.case.group.limit,
        "share": results.share(row),
        "best_peer": row.best_peer,
        "samples": {
            engine: {
                "rounds": samples.rounds,
                "seconds": samples.seconds,
                "spread": samples.spread,
                "rate": row.rate(engine),
                "regard_speed": row.speed_over(engine),
            }
            for engine, samples in row.samples.items()
        },
        "errors": row.errors,
        "left_out": row.left_out,
        "failed": row.failed,
    }


def _comparison(row: ComparisonResult) -> dict[str, Any]:
    return {
        "name": row.name,
        "about": row.comparison.about,
        "ratio": row.ratio,
        "samples": None if row.samples is None else row.samples.rounds,
        "reference": None if row.reference is None else row.reference.rounds,
        "failed": row.failed,
    }
