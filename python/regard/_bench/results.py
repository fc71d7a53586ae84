"""The measured times, and rates and shares computed from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from regard._bench.problems import Case, Limit


@dataclass(frozen=True)
class Samples:
    """The seconds of one call: a list for each round."""

    rounds: list[list[float]]

    @property
    def seconds(self) -> float:
        """The median."""
        return self._quantile(0.5)

    @property
    def spread(self) -> float:
        """The interquartile range divided by the median."""
        return (self._quantile(0.75) - self._quantile(0.25)) / self.seconds

    def _quantile(self, part: float) -> float:
        return float(np.quantile(list(chain(*self.rounds)), part))


@dataclass(frozen=True)
class CaseResult:
    """The results of all engines in one case.

    `errors` are the errors of the outputs relative to the largest element. `left_out` contains the
    reason why an engine was not called, after a keyword ("memory: ..."). `failed` contains the
    reason why it has no time.
    """

    case: Case
    samples: dict[str, Samples]
    errors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the case."""
        return self.case.name

    def rate(self, engine: str) -> float:
        """Return the rate of an engine in the unit of the case."""
        seconds, problem = self.samples[engine].seconds, self.case.problem
        if self.case.group.unit == "us":
            return seconds * 1e6
        work: int = problem.flops if self.case.group.unit == "GFLOP/s" else problem.bytes
        return work / seconds / 1e9

    def speed_over(self, engine: str | None) -> float | None:
        """Return regard's speed relative to an engine, or None if one of them has no time."""
        if engine is None or "regard" not in self.samples or engine not in self.samples:
            return None
        return self.samples[engine].seconds / self.samples["regard"].seconds

    @property
    def best_peer(self) -> str | None:
        """The fastest engine other than regard."""
        peers = [engine for engine in self.samples if engine != "regard"]
        return min(peers, key=lambda engine: self.samples[engine].seconds, default=None)


@dataclass(frozen=True)
class Results:
    """One run: the machine, its limits before and after the cases, and the results of the cases.

    `versions` are the versions of the measured engines. `missing` engines are not installed, and
    `broken` contains the reason why others could not be loaded.
    """

    date: str
    machine: dict[str, Any]
    threads: int
    rounds: int
    versions: dict[str, str]
    missing: list[str]
    broken: dict[str, str]
    peak: list[float]
    bandwidth: list[float]
    streamed_bytes: int
    seconds: float
    cases: list[CaseResult] = field(default_factory=list)

    def limit(self, which: Limit) -> float:
        """Return the best measurement of a limit, in operations or bytes per second."""
        return max(self.peak if which == "fma peak" else self.bandwidth)

    def share(self, result: CaseResult) -> float | None:
        """Return the share of the limit that regard reached, or None if the case has no limit."""
        limit = result.case.group.limit
        if limit is None or "regard" not in result.samples:
            return None
        return result.rate("regard") * 1e9 / self.limit(limit)

    @property
    def drift(self) -> float:
        """The larger relative change of a limit between the start and the end of the run."""
        return max(1 - min(limit) / max(limit) for limit in (self.peak, self.bandwidth))

    @property
    def is_sound(self) -> bool:
        """Whether all results of regard were correct."""
        return not any("regard" in row.failed for row in self.cases)

    def document(self) -> dict[str, Any]:
        """Return all results, and the numbers computed from them, for a file in JSON."""
        return asdict(self) | {"cases": [self._case_document(row) for row in self.cases]}

    def _case_document(self, row: CaseResult) -> dict[str, Any]:
        case = row.case
        samples = {
            engine: {
                "rounds": samples.rounds,
                "seconds": samples.seconds,
                "spread": samples.spread,
                "rate": row.rate(engine),
                "regard_speed": row.speed_over(engine),
            }
            for engine, samples in row.samples.items()
        }
        return {
            "name": row.name,
            "group": case.group.title,
            "problem": asdict(case.problem),
            "flops": case.problem.flops,
            "bytes": case.problem.bytes,
            "unit": case.group.unit,
            "limit": case.group.limit,
            "share": self.share(row),
            "best_peer": row.best_peer,
            "samples": samples,
            "errors": row.errors,
            "left_out": row.left_out,
            "failed": row.failed,
        }
