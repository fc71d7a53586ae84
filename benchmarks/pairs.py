"""Time two commands in pairs of processes, whose turns are interleaved.

A process keeps the physical memory that it was given, which makes cases that read from memory up to
a tenth faster or slower. Each case is therefore timed in several pairs of processes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


def serve(prepare: Callable[[str], Callable[[], float]]) -> None:
    """Answer each line of stdin with a line of JSON: a name prepares that case, and an empty line
    times it and is answered with seconds. The answer to a failure is a text."""
    for line in sys.stdin:
        name = line.strip()
        answer = None
        try:
            if name:
                timed = prepare(name)
            else:
                answer = timed()
        except Exception as error:
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps(answer), flush=True)


class _Server:
    """A process that serves."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str = "") -> Any:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the process ended with exit code {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def times_of(
    commands: Sequence[Sequence[str]], name: str, rounds: int, pairs: int
) -> list[tuple[float, float]] | str:
    """Return the seconds of both commands in every round, or the reason for a failure."""
    times = []
    for pair in range(pairs):
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(contextlib.closing(_Server(each))) for each in commands]
            for server in servers:
                if failed := server.ask(name):
                    return failed
            for number in range(rounds):
                order = (0, 1) if (pair + number) % 2 == 0 else (1, 0)
                seconds = {which: servers[which].ask() for which in order}
                times.append((seconds[0], seconds[1]))
    return times
