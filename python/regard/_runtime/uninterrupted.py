"""Run a function to its end, whatever signals arrive."""

from __future__ import annotations

import _thread
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def uninterrupted(function: Callable[[], object]) -> None:
    """Run a function to its end before an exception of a signal handler is raised.

    Python runs signal handlers only in the main thread, and they may raise between any two
    instructions. In the main thread, the function therefore runs in another thread. It must have no
    further effect if it is run again.
    """
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    raised: list[BaseException | None] = []
    is_running = _thread.allocate_lock()
    is_running.acquire()

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)
        with contextlib.suppress(RuntimeError):  # released by a run before this one
            is_running.release()

    interrupts: list[BaseException] = []
    while not raised:
        try:
            # An interrupt within Thread.start would confuse the threading module.
            _thread.start_new_thread(run, ())
            is_running.acquire()
        except RuntimeError:
            raise  # no thread can be started
        except BaseException as interrupt:
            interrupts.append(interrupt)
    failures = [each for each in (raised[0], *interrupts) if each is not None]
    raised.clear()
    interrupts.clear()
    if failures:
        try:
            raise failures[0]
        finally:
            # An exception that its own traceback refers to would keep the frames of the call alive.
            failures.clear()
