"""The machine on which the numbers are measured: its processor, caches and memory."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

import regard

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEAST_STREAMED = 512 << 20


def describe() -> dict[str, Any]:
    """Describe the machine and its software, without the names of the machine and the user."""
    config = regard.show_config(mode="dicts")
    blas: Any = np.show_config(mode="dicts")
    blas = blas["Build Dependencies"]["blas"]
    return {
        "cpu": _cpu_name(),
        "cpus": _cpus(),
        "memory_bytes": _memory("MemTotal"),
        "cache_bytes": _caches(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "regard": config["version"],
        "compiler": config["compiler"],
        "target": config["active_target"],
        "targets": list(regard.cpu_targets()),
    }


def streamed_bytes() -> int:
    """Return how many bytes to stream so that they are read from memory, not from a cache."""
    # A virtual machine reports the whole last-level cache, of which it may have only a part.
    last = max(_caches().values(), default=0)
    return max(_LEAST_STREAMED, min(2 * last, available_memory() // 8))


def available_memory() -> int:
    """Return how many bytes can be allocated without swapping."""
    return _memory("MemAvailable") or 8 * _LEAST_STREAMED  # if the system does not report it


def _cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_name() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        field, _, value = line.partition(":")
        if field.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _memory(field: str) -> int:
    for line in _lines(Path("/proc/meminfo")):
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    return 0


def _caches() -> dict[str, int]:
    caches = {}
    for index in sorted(_CACHES.glob("index*")):
        level, kind, size = (
            "".join(_lines(index / name)).strip() for name in ("level", "type", "size")
        )
        if kind != "Instruction" and size[:-1].isdecimal() and size[-1] in _UNITS:
            caches[f"L{level}"] = int(size[:-1]) * _UNITS[size[-1]]
    return caches


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
