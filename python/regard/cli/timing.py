"""A short side-by-side timing of the engines."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from .engines import Engine, NotInstalledError, NumPy, PyTorch, Regard
from .fresh_process import answer, run_in_fresh_process
from .problems import Attention
from .rounds import Runner, in_turns

HEADS, LENGTH, HEAD_DIM = 12, 512, 64
PROBLEM = Attention(1, HEADS, HEADS, LENGTH, LENGTH, HEAD_DIM)

_ENGINES: tuple[type[Engine], ...] = (Regard, NumPy, PyTorch)
_ROUNDS = 3
_PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Row:
    """What one engine reached."""

    engine: str
    milliseconds: float
    gflops: float
    ratio: float
    max_difference: float


@dataclass(frozen=True)
class Timing:
    """The engines, regard first, and those that could not be timed with the reason."""

    rows: list[Row]
    failed: dict[str, str]


def run_timing(threads: int) -> Timing:
    """Time the engines in a fresh process.

    Parameters
    ----------
    threads : int
        The threads of each engine.

    Returns
    -------
    Timing
        What they reached.

    Raises
    ------
    RuntimeError
        If the process fails.
    """
    result = run_in_fresh_process(__name__, threads, threads=threads, patience=_PATIENCE_SECONDS)
    return Timing([Row(**row) for row in result["rows"]], result["failed"])


def measure(threads: int) -> Timing:
    """Do what `run_timing` does, in this process."""
    inputs = PROBLEM.make_inputs()
    runners: dict[str, Runner] = {}
    outputs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for load in _ENGINES:
        try:
            engine = load(threads)
            runner = Runner(PROBLEM.on(engine, inputs), engine.around)
            with runner.around():
                outputs[engine.name] = engine.as_array(runner.call())
            runners[engine.name] = runner
        except NotInstalledError:
            continue
        except Exception as error:
            if load is Regard:
                raise
            failed[load.name] = " ".join(f"{type(error).__name__}: {error}".split())

    seconds = in_turns(runners, _ROUNDS)
    median = {name: statistics.median(chain(*rounds)) for name, rounds in seconds.items()}
    rows = [
        Row(
            engine=name,
            milliseconds=median[name] * 1e3,
            gflops=PROBLEM.flops / median[name] / 1e9,
            ratio=median[name] / median["regard"],
            max_difference=float(np.abs(outputs[name] - outputs["regard"]).max()),
        )
        for name in runners
    ]
    return Timing(rows, failed)


if __name__ == "__main__":
    answer(lambda threads, _send: asdict(measure(threads)))
