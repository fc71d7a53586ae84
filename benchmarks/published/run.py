"""A run of the table, reduced to the quoted numbers: quartiles instead of every call's time."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.this_bench import load_this_bench

load_this_bench()
from benchmarks.table.cases import CASES  # noqa: E402
from regard._bench.results import CaseResult, Results, Samples  # noqa: E402

FOLDER = Path(__file__).parent / "runs"
# The fields of a `python -m benchmarks.table --json` document that describe the whole run.
FACTS = ("date", "machine", "threads", "rounds", "versions", "instructions")
FACTS += ("peak", "bandwidth", "streamed_bytes", "seconds")


@dataclass(frozen=True)
class Run:
    """The quartiles of the seconds of each engine in each case, and the ratios of comparisons."""

    facts: dict[str, Any]
    cases: dict[str, dict[str, list[float]]]
    comparisons: dict[str, float]
    note: str = ""

    @property
    def results(self) -> Results:
        """The run as results for reports and pictures."""
        by_name = {case.name: case for case in CASES}
        rows = [
            CaseResult(
                by_name[name],
                {engine: Samples([quartiles]) for engine, quartiles in engines.items()},
                {},
                {},
                {},
            )
            for name, engines in self.cases.items()
        ]
        facts = {key: value for key, value in self.facts.items() if key != "instructions"}
        return Results(**facts, missing=[], broken={}, cases=rows)


def reduced(document: dict[str, Any], note: str = "") -> Run:
    """Reduce a document of ``python -m benchmarks.table --json``."""

    def quartiles(samples: dict[str, Any]) -> list[float]:
        calls = [seconds for calls in samples["rounds"] for seconds in calls]
        return [float(f"{part:.4g}") for part in np.quantile(calls, [0.25, 0.5, 0.75])]

    return Run(
        {key: document[key] for key in FACTS if key in document},
        {
            case["name"]: {engine: quartiles(of) for engine, of in case["samples"].items()}
            for case in document["cases"]
        },
        {row["name"]: round(row["ratio"], 3) for row in document["comparisons"] if row["ratio"]},
        note,
    )


def keep(run: Run, name: str) -> None:
    """Write a run to the folder of published runs."""
    document = {**run.facts, "note": run.note, "cases": run.cases, "comparisons": run.comparisons}
    # Write the three quartiles on one line.
    text = re.sub(
        r"\[\s+([^][{}]*?)\s+\]",
        lambda match: f"[{' '.join(match[1].split())}]",
        json.dumps(document, indent=1),
    )
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def published(name: str) -> Run:
    """Read a published run."""
    document = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    facts = {key: document[key] for key in FACTS if key in document}
    return Run(facts, document["cases"], document["comparisons"], document["note"])
