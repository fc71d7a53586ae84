"""What was measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from .cases import CASES, COMPARISONS, Case, Comparison, Yardstick


@dataclass(frozen=True)
class Samples:
    """The seconds of one call, a list for each round, and what is read from them."""

    rounds: list[list[float]]

    @property
    def seconds(self) -> float:
        """The median."""
        return self._quantile(0.5)

    @property
    def spread(self) -> float:
        """From the first quartile to the third, as a part of the median."""
        return (self._quantile(0.75) - self._quantile(0.25)) / self.seconds

    def _quantile(self, part: float) -> float:
        return float(np.quantile(list(chain(*self.rounds)), part))


@dataclass(frozen=True)
class CaseResult:
    """The engines in one case, and why others have no time; errors are those of their outputs."""

    name: str
    samples: dict[str, Samples]
    errors: dict[str, float]
    left_out: dict[str, str]

    @property
    def case(self) -> Case:
        """The case."""
        return next(case for case in CASES if case.name == self.name)

    def rate(self, engine: str) -> float:
        """Give what an engine reached, in the unit of the case."""
        seconds = self.samples[engine].seconds
        unit = self.case.group.unit
        if unit == "us":
            return seconds * 1e6
        work = self.case.problem.flops if unit == "GFLOP/s" else self.case.problem.bytes
        return work / seconds / 1e9

    def speed_against(self, engine: str) -> float | None:
        """How many times as fast as an engine regard is; None where one of them has no time."""
        if "regard" not in self.samples or engine not in self.samples:
            return None
        return self.samples[engine].seconds / self.samples["regard"].seconds

    @property
    def best_peer(self) -> str | None:
        """The fastest engine beside regard."""
        peers = [engine for engine in self.samples if engine != "regard"]
        return min(peers, key=lambda engine: self.samples[engine].seconds, default=None)

    @property
    def has_rival(self) -> bool:
        """Whether a peer has a time that is not NumPy, which is on every machine."""
        return bool(self.samples.keys() - {"regard", "NumPy"})


@dataclass(frozen=True)
class ComparisonResult:
    """Regard's times in one comparison, or the reason why there are none."""

    name: str
    samples: Samples | None = None
    beside: Samples | None = None
    left_out: str = ""

    @property
    def comparison(self) -> Comparison:
        """The comparison."""
        return next(row for row in COMPARISONS if row.name == self.name)

    @property
    def value(self) -> float | None:
        """The ratio that the comparison asks for."""
        if self.samples is None or self.beside is None:
            return None
        row = self.comparison
        expected = self.beside.seconds
        if row.for_equal_work:
            expected *= row.problem.flops / row.beside.flops
        ratio = self.samples.seconds / expected
        return 1 / ratio if row.is_speed else ratio

    @property
    def is_met(self) -> bool | None:
        """Whether the ratio is within its limit."""
        if self.value is None:
            return None
        row = self.comparison
        return self.value >= row.limit if row.is_speed else self.value <= row.limit


@dataclass(frozen=True)
class Results:
    """One run: the machine, its limits, and what the engines reached beside them."""

    date: str
    machine: dict[str, Any]
    threads: int
    rounds: int
    versions: dict[str, str]
    missing: dict[str, str]
    peak: list[float]
    bandwidth: list[float]
    streamed_bytes: int
    seconds: float
    cases: list[CaseResult] = field(default_factory=list)
    comparisons: list[ComparisonResult] = field(default_factory=list)

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Results:
        """Take up what `dataclasses.asdict` and JSON made of results."""
        cases = [
            CaseResult(
                **row | {"samples": {name: Samples(**one) for name, one in row["samples"].items()}}
            )
            for row in answer["cases"]
        ]
        comparisons = [
            ComparisonResult(
                **row | {name: _samples_or_none(row[name]) for name in ("samples", "beside")}
            )
            for row in answer["comparisons"]
        ]
        return cls(**answer | {"cases": cases, "comparisons": comparisons})

    def limit(self, yardstick: Yardstick) -> float:
        """Give the best of what was measured of a limit, in operations or bytes a second."""
        return max(self.peak if yardstick == "peak" else self.bandwidth)

    def share(self, result: CaseResult) -> float | None:
        """How much of its limit regard reached in a case; None where it has none."""
        yardstick = result.case.group.yardstick
        if yardstick is None or "regard" not in result.samples:
            return None
        return result.rate("regard") * 1e9 / self.limit(yardstick)

    @property
    def drift(self) -> float:
        """How far apart a limit was before the run and after it, as a part of the larger one."""
        return max(1 - min(limit) / max(limit) for limit in (self.peak, self.bandwidth))

    @property
    def is_target_free(self) -> bool:
        """Whether regard runs on the best target: the peers choose the best instructions too."""
        return bool(self.machine["target"] == self.machine["targets"][0])

    @property
    def unjudged(self) -> int:
        """How many goals are against the fastest peer where none but NumPy is installed."""
        if not self.is_target_free or self.versions.keys() - {"regard", "NumPy"}:
            return 0
        return sum(row.case.goals.peers is not None for row in self.cases)

    @property
    def is_sound(self) -> bool:
        """Whether regard computed everything that it was asked for, and computed it right."""
        return all("regard" in row.samples for row in self.cases) and all(
            row.samples is not None for row in self.comparisons
        )


def _samples_or_none(saved: dict[str, Any] | None) -> Samples | None:
    return None if saved is None else Samples(**saved)


@dataclass(frozen=True)
class Verdict:
    """A goal beside what was reached."""

    what: str
    wanted: float
    reached: float
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the goal was reached."""
        return self.reached >= self.wanted if self.is_least else self.reached <= self.wanted


OVER_PYTORCH = 1.9


def verdicts(results: Results) -> list[Verdict]:
    """Hold what was measured beside the goals; what was not measured is left out.

    Parameters
    ----------
    results : Results
        A run.

    Returns
    -------
    list of Verdict
        In the order of the table.
    """
    found = [verdict for row in results.cases for verdict in _of_case(results, row)]
    over = [
        speed
        for row in results.cases
        if row.case.group.title in ("attention", "decode")
        and (speed := row.speed_against("PyTorch")) is not None
    ]
    if len(over) > 1:
        mean = float(np.exp(np.mean(np.log(over))))
        found.append(Verdict("geometric mean over PyTorch", OVER_PYTORCH, mean))
    return found + [
        Verdict(f"{row.name}: {row.comparison.about}", row.comparison.limit, value, least)
        for row in results.comparisons
        if (value := row.value) is not None
        for least in [row.comparison.is_speed]
    ]


def _of_case(results: Results, row: CaseResult) -> Iterator[Verdict]:
    goals = row.case.goals
    share = results.share(row)
    columns: Sequence[str] = ("x86_v4", "x86_v3")
    target = results.machine["target"]
    if goals.share is not None and share is not None and target in columns:
        wanted = goals.share[columns.index(target)]
        yield Verdict(f"{row.name}: of the {row.case.group.yardstick}", wanted, share)
    if not results.is_target_free:
        return
    best = row.best_peer
    if goals.peers is not None and best is not None and row.has_rival:
        speed = row.speed_against(best)
        if speed is not None:
            yield Verdict(f"{row.name}: against {best}", goals.peers, speed)
    if goals.peer is not None:
        name, wanted = goals.peer
        speed = row.speed_against(name)
        if speed is not None:
            yield Verdict(f"{row.name}: against {name}", wanted, speed)
    if goals.seconds is not None and "regard" in row.samples:
        seconds = row.samples["regard"].seconds
        yield Verdict(f"{row.name}: us", goals.seconds * 1e6, seconds * 1e6, False)
