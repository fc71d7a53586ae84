"""Count the attention calls that regard computes in place of PyTorch, and the others."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class ReplacedCalls:
    """The numbers of attention calls that regard and PyTorch computed.

    Calls in a compiled function are counted when they run if regard computes them, and when they
    are compiled if PyTorch does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_regard = 0
        self._by_pytorch: Counter[str] = Counter()

    @property
    def by_regard(self) -> int:
        """Number of calls that regard computed."""
        return self._by_regard

    @property
    def by_pytorch(self) -> dict[str, int]:
        """Number of calls left to PyTorch, for each reason why regard did not compute them."""
        with self._lock:
            return dict(self._by_pytorch)

    def _count(self, reason: str | None) -> None:
        with self._lock:
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
    """A block whose calls are replaced and counted, as long as this object exists.

    A block that a signal interrupts between two instructions may not reach its end.
    """

    def __init__(self) -> None:
        self.calls = ReplacedCalls()


_of_thread: ContextVar[tuple[weakref.ref[CountedBlock], ...]] = ContextVar(
    "replacing_sdpa", default=()
)
calls_of_process: list[ReplacedCalls] = []
"""The counter of the calls of all threads, if there is one."""


@contextmanager
def counted_in_thread(block: CountedBlock) -> Iterator[None]:
    """Count the calls of this thread in a block, in addition to other counters."""
    token = _of_thread.set((*_of_thread.get(), weakref.ref(block)))
    try:
        yield
    finally:
        _of_thread.reset(token)


def _blocks() -> Iterator[CountedBlock]:
    for reference in _of_thread.get():
        block = reference()
        if block is not None:
            yield block


def is_counted() -> bool:
    """Return whether regard replaces the calls of this thread."""
    return bool(calls_of_process) or any(True for _ in _blocks())


def count_call(reason: str | None = None) -> None:
    """Count a call that regard computed, or else the reason why it did not."""
    for calls in (*(block.calls for block in _blocks()), *calls_of_process):
        calls._count(reason)
