"""Run work in a separate process, with the number of threads of every engine set.

NumPy reads its number of threads from the environment when it is loaded, so all engines can have
the same number only in a fresh process. If an engine crashes, only the fresh process ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_THREAD_VARIABLES = (
    "REGARD_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

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
    """Call a function of a module in a fresh process, and return its result.

    Parameters
    ----------
    work : callable
        Called with the request and a callable that sends a message.
    request : object
        The argument of `work`. The request, the messages and the answer must be picklable.
    threads : int
        The number of threads that the libraries in the process start.
    patience : float
        How long the process may be silent, in seconds.
    environment : mapping, optional
        Variables to set in addition to the variables of this process.
    on_message : callable, optional
        Called with each message.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    RuntimeError
        If the process fails or is silent for too long.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, work, request), daemon=True)
    variables = dict.fromkeys(_THREAD_VARIABLES, str(threads)) | dict(environment or {})
    with _environment(variables):
        process.start()
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
        raise RuntimeError(f"the timing {_end_of(process.exitcode)}") from None
    finally:
        process.kill()
        process.join()
        ours.close()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit status {exit_code}"


def _serve(channel: Connection, work: Work, request: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the waiting process handles Ctrl-C
    if not sys.flags.dev_mode:  # engines print while they are loaded; python -X dev shows it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    try:
        message = "answer", work(request, lambda content: channel.send(("message", content)))
    except BaseException as error:  # SystemExit too: an engine may raise anything while it loads
        message = "error", " ".join(f"{type(error).__name__}: {error}".split())
    channel.send(message)
