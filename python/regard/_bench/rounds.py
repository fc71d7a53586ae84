"""Interleaved timing, so that a disturbance affects all engines."""

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
    """Time interleaved calls.

    Parameters
    ----------
    runners : mapping of str to Runner
        The calls to time, by name.
    rounds : int
        Number of rounds.
    settle : float, optional
        How long each runs before it is timed in a round, in seconds; at least one call.
    on_turn : callable, optional
        Called with the name and the round, from 0, before a call is timed in the round.

    Returns
    -------
    dict of str to list
        By name, a list for each round: the seconds of a call in each of its samples.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in runners}
    for number in range(rounds):
        for name, runner in runners.items():
            on_turn(name, number)
            with runner.context():
                estimate = _settle(runner.call, settle)
                seconds[name].append(_sample(runner.call, estimate))
    return seconds


def _settle(call: Callable[[], Any], seconds: float) -> float:
    calls, elapsed = 0, 0.0
    start = time.perf_counter()
    while calls == 0 or elapsed < seconds:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
    return elapsed / calls


def _sample(call: Callable[[], Any], estimate: float) -> list[float]:
    calls = max(1, round(SAMPLE_SECONDS / estimate))
    samples = min(max(1, round(TIMED_SECONDS / (calls * estimate))), MAX_SAMPLES)
    return [_time(call, calls) / calls for _ in range(samples)]


def _time(call: Callable[[], Any], calls: int) -> float:
    turns = range(calls)
    start = time.perf_counter()
    for _ in turns:
        call()
    return time.perf_counter() - start
