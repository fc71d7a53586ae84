"""The results of a run on the table."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.table.cases import Comparison
from regard._bench.results import Results, Samples


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
