"""Interleaved timing, so that a disturbance affects all calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

# The threads of OpenBLAS and OpenMP spin on the cores for tens of milliseconds after their last
# work, and an engine that competes with them takes more than 100 ms to recover its speed. So each
# engine runs for this long before it is timed.
SETTLE_SECONDS = 0.25
# Calls that are shorter than a sample are timed together.
SAMPLE_SECONDS = 1e-3
TIMED_SECONDS = 0.1
MAX_SAMPLES = 20


@dataclass(frozen=True)
class Runner:
    """A call, and the context that it runs in."""

    call: Callable[[], Any]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def in_turns(
    runners: Mapping[str, Runner],
    rounds: int,
    *,
    settle: float = SETTLE_SECONDS,
    on_turn: Callable[[str, int], None] = lambda _name, _round: None,
) -> dict[str, list[list[float]]]:
    """Time interleaved calls, after each has run for `settle` seconds in its turn, at least once.

    Returns, by name, a list for each round: the seconds of a call in each of its samples. `on_turn`
    is called with the name and the round, from 0, before a call is timed in the round.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in runners}
    for number in range(rounds):
        for name, runner in runners.items():
            on_turn(name, number)
            with runner.context():
                seconds[name].append(_turn(runner.call, settle))
    return seconds


def _turn(call: Callable[[], Any], settle: float) -> list[float]:
    """Run a call until it has settled, and return the seconds of a call in each sample."""
    settling, elapsed = 0, 0.0
    start = time.perf_counter()
    while settling == 0 or elapsed < settle:
        call()
        settling += 1
        elapsed = time.perf_counter() - start
    estimate = elapsed / settling
    calls = max(1, round(SAMPLE_SECONDS / estimate))
    samples = []
    for _ in range(min(max(1, round(TIMED_SECONDS / (calls * estimate))), MAX_SAMPLES)):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls)
    return samples
