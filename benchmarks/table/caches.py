"""Attention to a `regard.KVCache`, and appends to it, as problems."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard._bench.engines import Array, Call, Engine
from regard._bench.machine import available_memory
from regard._bench.problems import Attention, Inputs

# Bytes of each number, including the scales of groups, and of a row's scale.
_BYTES = {"float16": (2.0, 0), "int8": (1.0, 4), "float8_e4m3fn": (1.0, 0), "q4_1": (5 / 8, 0)}


class NoRoomError(Exception):
    """A problem needs more memory or disk space than is available."""


@dataclass(frozen=True)
class CachedAttention(Attention):
    """Attention to a `regard.KVCache`.

    A single query attends to a full cache. Several queries are the tokens of a prompt: each call
    appends their keys and values to an empty cache and attends.

    `storage` is the cache's dtype, `page_size` the tokens of a page. The keys are appended
    `repeats` times, which changes no output, so that a large cache needs no inputs of its size.
    `is_mapped` maps the cache from a file.
    """

    storage: str = "float32"
    page_size: int | None = None
    repeats: int = 1
    is_mapped: bool = False

    @property
    def bytes(self) -> int:
        """Keys and values once, as stored, with their scales."""
        rows = 2 * self.batch * self.kv_heads * self.kv_len * self.repeats
        of_number, of_row = _BYTES.get(self.storage, (4.0, 0))
        return rows * (int(self.head_dim * of_number) + of_row)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Make and fill the cache, and return the call."""
        query, key, value = inputs
        options: dict[str, Any] = {"dtype": self.storage, "capacity": self.kv_len * self.repeats}
        if self.page_size is not None:
            options["page_size"] = self.page_size
        if self.is_mapped:
            self._check_room()
        cache = regard.KVCache(self.batch, self.kv_heads, self.head_dim, **options)
        if self.q_len > 1:

            def prefill() -> Any:
                cache.truncate(0)
                cache.append(key, value)
                return cache.attend(query, threads=engine.threads)

            return prefill
        for _ in range(self.repeats):
            cache.append(key, value)
        if self.is_mapped:
            cache = _mapped(cache)
        return lambda: cache.attend(query, threads=engine.threads)

    def _check_room(self) -> None:
        free, memory = shutil.disk_usage(tempfile.gettempdir()).free, available_memory()
        if min(free, memory) < 2 * self.bytes:
            raise NoRoomError(
                f"it needs {self.bytes / 1e9:.1f} GB of disk and of memory, but "
                f"{free / 1e9:.1f} and {memory / 1e9:.1f} are free"
            )


def _mapped(cache: regard.KVCache) -> regard.KVCache:
    """Return a cache as it is mapped from its file, which disappears with the process."""
    with tempfile.TemporaryDirectory(prefix="regard-bench-") as folder:
        cache.save(Path(folder, "cache"))
        return regard.KVCache.load(Path(folder, "cache"), mmap=True)


@dataclass(frozen=True)
class Append:
    """A token's keys and values, appended after `length` others; a window `evicts` the oldest."""

    kv_heads: int
    length: int
    head_dim: int
    evicts: bool = False

    @property
    def flops(self) -> int:
        """Zero, since nothing is computed."""
        return 0

    @property
    def bytes(self) -> int:
        """The token read once and written once."""
        return 4 * self.kv_heads * self.head_dim * 4

    def make_inputs(self) -> Inputs:
        """Make the token's key and value."""
        rng = np.random.default_rng(0)
        shape = (1, self.kv_heads, 1, self.head_dim)
        return rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)

    def sample(self, inputs: Inputs) -> tuple[Any, Array]:
        """Return what the call returns if the cache has grown."""
        del inputs
        return np.s_[:], np.ones(1)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Return the call, which returns whether the cache holds more than `length` tokens."""
        del engine
        key, value = inputs
        room: dict[str, Any] = (
            {"keep_last": self.length} if self.evicts else {"capacity": self.length + 1}
        )
        cache = regard.KVCache(1, self.kv_heads, self.head_dim, **room)
        many = (1, self.kv_heads, self.length, self.head_dim)
        cache.append(np.broadcast_to(key, many), np.broadcast_to(value, many))

        def append() -> Array:
            if not self.evicts:
                cache.truncate(self.length)
            cache.append(key, value)
            return cache.lengths > self.length

        return append
