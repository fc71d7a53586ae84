"""What `regard.KVCache` is timed on, beside attention itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import regard

from .problems import Array, Attention, Inputs

if TYPE_CHECKING:
    from .engines import Call, Engine


class NoRoomError(Exception):
    """There is too little memory or disk for a problem."""


@dataclass(frozen=True)
class CachedAttention(Attention):
    """Attention to a `regard.KVCache`.

    A single query attends to what is there. More are the tokens of a prompt: each call appends
    their keys and values to an empty cache and attends.

    `storage` is what the cache stores, `page_size` that of its pages. The keys are appended
    `repeats` times, which changes no output: a large cache needs no inputs of its size.
    `is_mapped` keeps it in a file.
    """

    storage: str = "float32"
    page_size: int | None = None
    repeats: int = 1
    is_mapped: bool = False

    @property
    def bytes(self) -> int:
        """Keys and values once, as they are stored: with a scale of 4 bytes a row of int8."""
        rows = 2 * self.batch * self.kv_heads * self.kv_len * self.repeats
        if self.storage == "int8":
            return rows * (self.head_dim + 4)
        return rows * self.head_dim * {"float16": 2}.get(self.storage, 4)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Give the call; the cache is made and filled here."""
        query, key, value, _ = inputs
        options: dict[str, Any] = {"dtype": self.storage, "capacity": self.kv_len * self.repeats}
        if self.page_size is not None:
            options["page_size"] = self.page_size
        cache = self._mapped(options) if self.is_mapped else self._made(options)
        if self.q_len > 1:

            def prefill() -> Any:
                cache.truncate(0)
                cache.append(key, value)
                return cache.attend(query, threads=engine.threads)

            return prefill
        for _ in range(self.repeats):
            cache.append(key, value)
        return lambda: cache.attend(query, threads=engine.threads)

    def _made(self, options: dict[str, Any]) -> regard.KVCache:
        return regard.KVCache(self.batch, self.kv_heads, self.head_dim, **options)

    def _mapped(self, options: dict[str, Any]) -> regard.KVCache:
        # The file goes when the cache does, however the process ends: it has no name from here on.
        folder = Path(tempfile.mkdtemp(prefix="regard-bench-"))
        try:
            free, memory = shutil.disk_usage(folder).free, _free_memory()
            if min(free, memory) < 2 * self.bytes:
                raise NoRoomError(
                    f"it takes {self.bytes / 1e9:.1f} GB of disk and of memory, and "
                    f"{free / 1e9:.1f} and {memory / 1e9:.1f} are free"
                )
            return self._made(options | {"path": folder / "cache"})
        finally:
            shutil.rmtree(folder)


@dataclass(frozen=True)
class Append:
    """A token's keys and values put behind `length` others, of which a window may evict one."""

    kv_heads: int
    length: int
    head_dim: int
    evicts: bool = False

    @property
    def flops(self) -> int:
        """None."""
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
        """Give what the call returns: that the last token is the one that was appended."""
        del inputs
        return np.s_[:], np.ones(1)

    def on(self, engine: Engine, inputs: Inputs) -> Call:
        """Give the call; it says whether there are as many tokens as there should be."""
        del engine
        key, value = inputs
        room: dict[str, Any] = (
            {"window": self.length} if self.evicts else {"capacity": self.length + 1}
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


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
