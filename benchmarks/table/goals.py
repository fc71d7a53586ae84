"""The goals of regard, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.table.cases import BACKWARD, ELEMENTWISE, PRODUCT, SOFTMAX, TRAINING
from benchmarks.table.measuring import TableResults
from benchmarks.table.stages import Matmul
from regard._bench.problems import DECODE, FORWARD, Attention, Case
from regard._bench.results import CaseResult, Results


@dataclass(frozen=True)
class Goal:
    """A number to reach: at least `wanted`, or at most `wanted` if not `is_least`."""

    what: str
    wanted: float
    reached: float
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the number was reached."""
        return self.reached >= self.wanted if self.is_least else self.reached <= self.wanted


# The speed relative to PyTorch, as the geometric mean over attention and decode.
OVER_PYTORCH = 1.9
# The share of the fma peak by head_dim, for at least MANY_KEYS keys, and of the read bandwidth in
# decoding.
PEAK_SHARES = {64: 0.80, 128: 0.84}
BACKWARD_SHARES = {64: 0.76, 128: 0.80}
MANY_KEYS = 1024
BANDWIDTH_SHARE = 0.88
# Seconds of a call.
SECONDS = {"notebook 6x2": 4e-6, "early 1x32/8x128x128": 20e-6}
# The ratios of comparisons: the least ratio if it is a speed, otherwise the largest.
RATIOS = {
    "causal 1x12x1024x64": 0.58,
    "causal 1x8x4096x64": 0.53,
    "strided 1x16x1024x64": 1.05,
    "float16 1x12x1024x64": 1.1,
    "float16 decode 1x32/32x16384": 1.8,
    "group 8 decode 1x64/8x16384": 1.15,
    "int8 cache decode 1x32/32x16384": 3.0,
    "float8 cache decode 1x32/32x16384": 2.6,
    "4-bit cache decode 1x32/32x16384": 3.5,
    "pages decode 8x32/8x4096x128": 1.03,
    "append beside 1x32/8x4096x128": 0.02,
    "evict beside 1x32/8x4096x128": 0.02,
    "prefill a cache 1x32/8x512x128": 1.05,
    "prefill pages 1x32/8x512x128": 1.05,
    "mapped file 4 GB 1x8/8x524288": 1.1,
    "int8 arithmetic 1x12x1024x64": 1.35,
    "int8 arithmetic 1x8x4096x128": 1.35,
    "bfloat16 arithmetic 1x12x1024x64": 1.35,
    "bfloat16 arithmetic 1x8x4096x128": 1.35,
    "mask of blocks 1x8x4096x64": 1.3,
    "4 of 64 blocks 1x2x8192x64": 1.1,
    "4 of 64 blocks 1x2x8192x128": 1.1,
    "documents of 2000 1x1x262000x64": 1.1,
    "window 256 1x4x65536x64": 1.5,
    "2 threads 1x12x2048x64": 1.9,
    "2 threads backward 1x1x2048x64": 1.8,
    "jvp 1x12x1024x64": 3.2,
}


def goals_of(table: TableResults) -> list[Goal]:
    """Return the goals that apply to a run, in the order of the table.

    Goals of cases that were not measured are left out. Goals for the speed relative to other
    engines apply only if regard runs on the best target, as the others do, and if an engine other
    than NumPy was measured.
    """
    results = table.results
    found = [goal for row in results.cases for goal in _of_case(results, row)]
    speeds = [
        speed
        for row in results.cases
        if row.case.group in (FORWARD, DECODE) and (speed := row.speed_over("PyTorch")) is not None
    ]
    if len(speeds) > 1 and _is_on_best_target(results):
        mean = float(np.exp(np.mean(np.log(speeds))))
        found.append(Goal("geometric mean over PyTorch", OVER_PYTORCH, mean))
    for one in table.comparisons:
        if one.ratio is not None:
            what = f"{one.name}: {one.comparison.about}"
            found.append(Goal(what, RATIOS[one.name], one.ratio, one.comparison.is_speed))
    return found


def unjudged(results: Results) -> int:
    """Count the goals relative to other engines that do not apply since only NumPy is installed."""
    if not _is_on_best_target(results) or results.versions.keys() - {"regard", "NumPy"}:
        return 0
    return len(results.cases)


def _of_case(results: Results, row: CaseResult) -> Iterator[Goal]:
    share, wanted = results.share(row), _wanted_share(row.case)
    if share is not None and wanted is not None:
        yield Goal(f"{row.name}: of the {row.case.group.limit}", wanted, share)
    if not _is_on_best_target(results):
        return
    best = row.best_peer
    if best is not None and row.samples.keys() - {"regard", "NumPy"}:
        speed = row.speed_over(best)
        if speed is not None:
            yield Goal(f"{row.name}: over {best}", _wanted_speed(row.case), speed)
    if row.name in SECONDS and "regard" in row.samples:
        seconds = row.samples["regard"].seconds
        yield Goal(f"{row.name}: us", SECONDS[row.name] * 1e6, seconds * 1e6, is_least=False)


def _wanted_share(case: Case) -> float | None:
    if case.group == DECODE:
        return BANDWIDTH_SHARE
    problem = case.problem
    if isinstance(problem, Attention) and problem.kv_len >= MANY_KEYS:
        shares = {FORWARD: PEAK_SHARES, BACKWARD: BACKWARD_SHARES}.get(case.group, {})
        return shares.get(problem.head_dim)
    return None


def _wanted_speed(case: Case) -> float:
    """Return the wanted speed relative to the fastest other engine."""
    if case.group == PRODUCT and isinstance(case.problem, Matmul) and not case.problem.batch:
        return 1.0
    if case.group == ELEMENTWISE:
        return 1.0
    if case.group in (BACKWARD, TRAINING):
        return 1.7
    return 1.1 if case.group == SOFTMAX else 1.2


def _is_on_best_target(results: Results) -> bool:
    """Return whether regard used the best target, as the other engines do."""
    return bool(results.machine["target"] == results.machine["targets"][0])
