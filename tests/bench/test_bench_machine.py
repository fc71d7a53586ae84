"""The machine is described without names, and its caches are found."""

import json
import os
import platform
from pathlib import Path

from regard._bench import machine


def test_the_machine_is_described_without_names():
    described = json.dumps(machine.describe())
    for name in (platform.node(), os.environ.get("USER", ""), str(Path.home())):
        assert not name or f'"{name}"' not in described
    assert machine.describe()["cpus"] >= 1


def test_caches_and_memory(tmp_path, monkeypatch):
    for number, (level, kind, size) in enumerate(
        [
            (1, "Data", "32K"),
            (1, "Instruction", "64K"),
            (2, "Unified", "1024K"),
            (3, "Unified", "2G"),
        ]
    ):
        index = tmp_path / f"index{number}"
        index.mkdir()
        for name, content in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{content}\n")
    monkeypatch.setattr(machine, "_CACHES", tmp_path)
    assert machine.describe()["cache_bytes"] == {"L1": 32 << 10, "L2": 1 << 20, "L3": 2 << 30}
    monkeypatch.setattr(machine, "_memory", lambda _field: 1 << 40)
    assert machine.streamed_bytes() == 4 << 30
    monkeypatch.setattr(machine, "_memory", lambda _field: 8 << 30)
    assert machine.streamed_bytes() == 1 << 30
    monkeypatch.setattr(machine, "_CACHES", tmp_path / "missing")
    assert machine.streamed_bytes() == 512 << 20
