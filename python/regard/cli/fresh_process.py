"""Work in a process of its own, with the threads of every engine set.

NumPy takes its number of threads from the environment when it is loaded: only in a fresh process
have all engines the same. An engine that crashes takes that process with it, and not this one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

_THREAD_VARIABLES = (
    "REGARD_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run_in_fresh_process(
    module: str,
    request: Any,
    *,
    threads: int,
    patience: float,
    environment: Mapping[str, str] | None = None,
    on_message: Callable[[Any], None] = lambda _message: None,
) -> Any:
    """Run a module that ends in `answer`, and give its answer.

    Parameters
    ----------
    module : str
        The module's name.
    request : object
        What it is to answer; anything that JSON can say, as are the messages and the answer.
    threads : int
        The threads that the libraries in it start.
    patience : float
        How many seconds it may stay silent.
    environment : mapping, optional
        Variables that are set beside this process's own.
    on_message : callable, optional
        Told what it sends before it answers.

    Returns
    -------
    object
        The answer.

    Raises
    ------
    RuntimeError
        If it fails, or is silent for too long.
    """
    variables = dict(os.environ) | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    variables.update(environment or {})
    # The process is to find the same regard, wherever this one found it.
    variables["PYTHONPATH"] = os.pathsep.join(entry or "." for entry in sys.path)
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", module, json.dumps(request)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in _lines(process.stdout, patience):
                message = json.loads(line)
                if "answer" in message:
                    return message["answer"]
                on_message(message["message"])
            status = process.wait(patience)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise RuntimeError(f"the timing gave no sign for {patience:g} s") from None
        finally:
            process.kill()
        if status < 0:
            raise RuntimeError(f"the timing died of {signal.Signals(-status).name}")
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(f"the timing failed: {''.join(last)}")


def _lines(stream: IO[bytes], patience: float) -> Iterator[bytes]:
    waiting = b""
    while True:
        if not select.select([stream], [], [], patience)[0]:
            raise TimeoutError
        piece = os.read(stream.fileno(), 1 << 16)
        if not piece:
            return
        *lines, waiting = (waiting + piece).split(b"\n")
        yield from lines


def answer(work: Callable[[Any, Callable[[Any], None]], Any]) -> None:
    """Answer the request that this process was started with.

    Parameters
    ----------
    work : callable
        Takes the request and a callable that sends a message, and gives the answer.
    """
    # Engines may print while they are loaded: what they print must not mix with what is sent.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(content: dict[str, Any]) -> None:
            channel.write(json.dumps(content) + "\n")
            channel.flush()

        send({"answer": work(json.loads(sys.argv[1]), lambda message: send({"message": message}))})
