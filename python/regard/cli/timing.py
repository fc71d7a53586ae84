"""A short side-by-side timing of the engines.

It runs in a process of its own, because NumPy takes its number of threads from the environment
when it is loaded: only so have all engines the same.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .engines import Attention, NotInstalledError, engines

HEADS, LENGTH, HEAD_DIM = 12, 512, 64
FLOPS = 4 * HEADS * LENGTH * LENGTH * HEAD_DIM

_SECONDS = 1.0
_MIN_ROUNDS = 3
_CALLS_IN_A_ROUND = 3
_SETTLE_SECONDS = 0.2
_PATIENCE_SECONDS = 120
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


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
    environment = dict(os.environ)
    environment.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    # The process is to find the same regard, wherever this one found it.
    environment["PYTHONPATH"] = os.pathsep.join(entry or "." for entry in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(threads)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the timing took more than {_PATIENCE_SECONDS} s") from None
    if done.returncode < 0:
        raise RuntimeError(f"the timing died of {signal.Signals(-done.returncode).name}")
    if done.returncode > 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"the timing failed: {''.join(last)}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Timing([Row(**row) for row in result["rows"]], result["failed"])


def measure(threads: int) -> Timing:
    """Time the engines in this process, in turns, so that what disturbs one disturbs all.

    Parameters
    ----------
    threads : int
        The threads of each engine.

    Returns
    -------
    Timing
        What they reached.
    """
    rng = np.random.default_rng(0)
    query, key, value = rng.standard_normal((3, 1, HEADS, LENGTH, HEAD_DIM), dtype=np.float32)
    attentions: dict[str, Attention] = {}
    outputs: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name, prepare in engines():
        try:
            attention = prepare(threads)
            outputs[name] = attention(query, key, value)
            attentions[name] = attention
        except NotInstalledError:
            continue
        except Exception as error:
            if name == "regard":
                raise
            failed[name] = " ".join(f"{type(error).__name__}: {error}".split())

    seconds: dict[str, list[float]] = {name: [] for name in attentions}
    started = time.perf_counter()
    rounds = 0
    while rounds < _MIN_ROUNDS or time.perf_counter() - started < _SECONDS:
        for name, attention in attentions.items():
            # The last engine's threads may spin on the cores yet; more than 100 ms was seen.
            settled = time.perf_counter() + _SETTLE_SECONDS
            while time.perf_counter() < settled:
                attention(query, key, value)
            for _ in range(_CALLS_IN_A_ROUND):
                before = time.perf_counter()
                attention(query, key, value)
                seconds[name].append(time.perf_counter() - before)
        rounds += 1

    median = {name: statistics.median(some) for name, some in seconds.items()}
    rows = [
        Row(
            engine=name,
            milliseconds=median[name] * 1e3,
            gflops=FLOPS / median[name] / 1e9,
            ratio=median[name] / median["regard"],
            max_difference=float(np.abs(outputs[name] - outputs["regard"]).max()),
        )
        for name in attentions
    ]
    return Timing(rows, failed)


if __name__ == "__main__":
    # What an engine prints while it is loaded stays apart from the last line, which is the result.
    print("\n" + json.dumps(asdict(measure(int(sys.argv[1])))))
