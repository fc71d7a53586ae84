"""Count the attention calls that regard computes in place of PyTorch, and the others."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextvars import ContextVar

lock = threading.RLock()
"""Held while blocks of the process begin and end, and while a call is counted.

The garbage collector may end a generator, and thus a block, at any time, so a thread may take the
lock again. A forked child finds nothing half changed by a thread that it does not have.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


class ReplacedCalls:
    """The numbers of attention calls that regard and PyTorch computed.

    Calls in a compiled function are counted when they run if regard computes them, and when they
    are compiled if PyTorch does.
    """

    def __init__(self) -> None:
        self._by_regard = 0
        self._by_pytorch: Counter[str] = Counter()

    @property
    def by_regard(self) -> int:
        """Number of calls that regard computed."""
        return self._by_regard

    @property
    def by_pytorch(self) -> dict[str, int]:
        """Number of calls left to PyTorch, for each reason why regard did not compute them."""
        with lock:
            return dict(self._by_pytorch)

    def _count(self, reason: str | None) -> None:
        with lock:
            if reason is None:
                self._by_regard += 1
            else:
                self._by_pytorch[reason] += 1

    def __repr__(self) -> str:
        others = self.by_pytorch
        reasons = "".join(f"; {count}: {reason}" for reason, count in others.items())
        total = sum(others.values())
        return f"ReplacedCalls({self._by_regard} by regard, {total} by PyTorch{reasons})"


class CountedBlock:
    """A block whose calls are replaced and counted while it is open."""

    def __init__(self) -> None:
        self.calls = ReplacedCalls()
        self.is_open = True


_of_thread: ContextVar[tuple[CountedBlock, ...]] = ContextVar("replacing_sdpa", default=())
blocks_of_process: list[CountedBlock] = []
"""The block that counts the calls of all threads, if there is one."""


def count_in_thread(block: CountedBlock) -> None:
    """Count the calls of this thread in a block, in addition to other counters."""
    _of_thread.set((*_blocks_of_thread(), block))


def _blocks_of_thread() -> list[CountedBlock]:
    """Return the open blocks, which may have been closed in any order and in other threads."""
    return [block for block in _of_thread.get() if block.is_open]


def is_counted() -> bool:
    """Return whether regard replaces the calls of this thread."""
    return bool(blocks_of_process or _blocks_of_thread())


def count_call(reason: str | None = None) -> None:
    """Count a call that regard computed, or else the reason why it did not."""
    for block in (*_blocks_of_thread(), *blocks_of_process):
        block.calls._count(reason)
