"""The results as a document in JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from regard._bench.results import CaseResult, Results


def document_of(results: Results) -> dict[str, Any]:
    """Return all results, and the numbers computed from them."""
    return asdict(results) | {"cases": [_case(results, row) for row in results.cases]}


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
