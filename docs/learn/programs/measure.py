"""What the steps share: one problem, this machine's limits, medians, a record of each step.

Import this before NumPy, whose libraries are told as they load that they may use one core.
"""

import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

for name in ("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np

import regard
from regard import _core

LENGTH, HEAD_DIM = 1536, 64
CORES = regard.get_num_threads()
HERE = Path(__file__).parent
RECORDS = HERE / "measured"


def problem(
    length: int = LENGTH, head_dim: int = HEAD_DIM, dtype: type = np.float32
) -> np.ndarray:
    """Return query, key and value: normal numbers that are the same in every step."""
    return np.random.default_rng(1).standard_normal((3, length, head_dim)).astype(dtype)


def work(*, is_causal: bool = False) -> int:
    """Return the operations of the two products, over all visible scores."""
    scores = LENGTH * (LENGTH + 1) // 2 if is_causal else LENGTH * LENGTH
    return 4 * HEAD_DIM * scores


def peak(threads: int = 1) -> float:
    """Return the FLOP/s of multiply-adds on registers that `threads` cores reach."""
    return max(_core.fma_peak(False, threads) for _ in range(3))


def bandwidth(threads: int = 1) -> float:
    """Return the bytes per second that `threads` cores read from memory, beyond every cache."""
    return max(_core.read_bandwidth(256 << 20, threads) for _ in range(3))


def median_time(call: Callable[[], object], repeats: int = 7) -> float:
    """Return the median time of a call in seconds, after one call that is not timed."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def cannot_show(claim: str) -> None:
    """Say that this machine does not show what the page claims."""
    print(f"NOTE: this machine cannot show {claim}")


def machine_and_source(name: str) -> str:
    """Return what a record holds for: another machine or another program makes it stale."""
    machine = (platform.node(), CORES, regard.active_target(), regard.__version__)
    sources = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.hpp")))
    program = (HERE / name).read_bytes()
    return hashlib.sha256(repr(machine).encode() + program + sources).hexdigest()


def report(
    name: str,
    call: Callable[[], object],
    *,
    cores: int = 1,
    is_causal: bool = False,
    rounds: int = 5,
    row: str = "",
) -> None:
    """Time a step and the peak, print the step's share of it, and record it for the table.

    `name` is the name of the program. If it has several rows in the table, `row` distinguishes
    them. A share is the median of rounds, each with its own peak, because the clock changes.
    """
    row = row or name.split(".")[0]
    speeds, peaks = [], []
    for _ in range(rounds):
        speeds.append(work(is_causal=is_causal) / median_time(call, 3))
        peaks.append(_core.fma_peak(False, cores))
    share = statistics.median(speed / limit for speed, limit in zip(speeds, peaks, strict=True))
    print(f"{row}: {share:.1%} of the peak of {cores} core{'s' * (cores > 1)}")
    if max(peaks) > 1.25 * min(peaks):
        print(
            f"NOTE: the machine was busy: its peak changed by {max(peaks) / min(peaks) - 1:.0%}"
        )
    content = {
        "holds_for": machine_and_source(name),
        "cores": cores,
        "share": share,  # of the peak of the cores that it uses
        "speed": share * (max(peaks) / peak(1) if cores > 1 else 1),  # in peaks of one core
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    unfinished = RECORDS / f"{row}.{os.getpid()}"
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(RECORDS / f"{row}.json")


def run(name: str) -> str:
    """Run a program, in Python or C++, in its own process, and return what it prints."""
    command = [HERE / name] if name.endswith(".py") else [HERE / "compiled.py", name]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
