"""The machine on which the numbers are measured: its processor, caches and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

import regard

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LEAST_STREAMED = 512 << 20


def describe() -> dict[str, Any]:
    """Describe the machine and its software, without the names of the machine and the user."""
    config = regard.show_config(mode="dicts")
    blas: Any = np.show_config(mode="dicts")
    blas = blas["Build Dependencies"]["blas"]
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _field("cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cpus": len(affinity(0)) if affinity else os.cpu_count() or 1,
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


def _memory(field: str) -> int:
    return int((_field("meminfo", field) or "0").split()[0]) << 10


def _field(file: str, name: str) -> str:
    """Return a field of a file in /proc, or an empty text."""
    for line in _text(Path("/proc", file)).splitlines():
        field, _, value = line.partition(":")
        if field.strip() == name:
            return value.strip()
    return ""


def _caches() -> dict[str, int]:
    caches = {}
    for index in sorted(_CACHES.glob("index*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and size[:-1].isdecimal() and size[-1] in "KMG":
            caches[f"L{level}"] = int(size[:-1]) << {"K": 10, "M": 20, "G": 30}[size[-1]]
    return caches


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
