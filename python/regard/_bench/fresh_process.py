"""Run work in a separate process, with the number of threads of every engine set.

NumPy reads its number of threads from the environment when it is loaded, so all engines can have
the same number only in a fresh process. If an engine crashes, only the fresh process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

_LIBRARIES = ("REGARD", "OMP", "OPENBLAS", "MKL", "BLIS")
_THREAD_VARIABLES = (*(f"{name}_NUM_THREADS" for name in _LIBRARIES), "VECLIB_MAXIMUM_THREADS")

Work = Callable[[Any, Callable[[Any], None]], Any]


def run_in_fresh_process(
    work: Work,
    request: Any,
    *,
    threads: int,
    patience: float,
    environment: Mapping[str, str] | None = None,
    on_message: Callable[[Any], None] = lambda _message: None,
) -> Any:
    """Call a function of a module with a request in a fresh process, and return its result.

    `work` also gets a callable that sends a message to `on_message`. Libraries in the process start
    `threads` threads, and `environment` has variables to set in addition. Raises RuntimeError if
    the process fails, or is silent for more than `patience` seconds.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, work, request), daemon=True)
    before = os.environ.copy()
    try:
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)), **environment or {})
        process.start()
    finally:
        os.environ.clear()
        os.environ.update(before)
    theirs.close()
    try:
        while ours.poll(patience):
            kind, content = ours.recv()
            if kind == "answer":
                return content
            if kind == "error":
                raise RuntimeError(f"the timing failed: {content}")
            on_message(content)
        raise RuntimeError(f"the timing was silent for {patience:g} s")
    except EOFError:
        process.join(patience)
        code = process.exitcode
        how = f"ended with exit status {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        raise RuntimeError(f"the timing {how}") from None
    finally:
        process.kill()
        process.join()
        ours.close()


def in_one_line(error: BaseException) -> str:
    """Return the type and the message of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _serve(channel: Connection, work: Work, request: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the waiting process handles Ctrl-C
    if not sys.flags.dev_mode:  # engines print while they are loaded; python -X dev shows it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        message = "answer", work(request, lambda content: channel.send(("message", content)))
    except BaseException as error:  # SystemExit too: an engine may raise anything while it loads
        message = "error", in_one_line(error)
    channel.send(message)
