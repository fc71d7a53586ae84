"""Count the attention calls that regard computes in place of PyTorch, and the others."""

from __future__ import annotations

import os
import threading
from collections import Counter
from contextvars import ContextVar

lock = threading.RLock()
"""Held while the replacement begins and ends, and while a call is counted.

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
        self._is_open = True

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


_of_thread: ContextVar[tuple[ReplacedCalls, ...]] = ContextVar("replacing_sdpa", default=())
counts_of_process: list[ReplacedCalls] = []
"""The counts of the calls of all threads, if there are any."""


def count_in_thread(calls: ReplacedCalls) -> None:
    """Count the calls of this thread, in addition to other counts, until `close` is called."""
    _of_thread.set((*_counts_of_thread(), calls))


def close(calls: ReplacedCalls) -> None:
    """Count no more calls."""
    calls._is_open = False


def _counts_of_thread() -> list[ReplacedCalls]:
    """Return the open counts, which may have been closed in any order and in other threads."""
    return [calls for calls in _of_thread.get() if calls._is_open]


def is_counted() -> bool:
    """Return whether regard replaces the calls of this thread."""
    return bool(counts_of_process or _counts_of_thread())


def count_call(reason: str | None = None) -> None:
    """Count a call that regard computed, or else the reason why it did not."""
    for calls in (*_counts_of_thread(), *counts_of_process):
        calls._count(reason)
