"""A line that says what a long command is doing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from .terminal import Terminal, left


class Progress:
    """The line: written over on a terminal, and elsewhere a line for each step.

    Parameters
    ----------
    stream : text stream or None
        Where it goes.
    steps : int
        How many steps there are.
    """

    def __init__(self, stream: TextIO | None, steps: int) -> None:
        self._terminal = Terminal.of(stream)
        self._is_live = stream is not None and stream.isatty()
        self._steps = steps
        self._step = 0
        self._name = ""
        self._started = time.monotonic()

    def show(self, name: str, detail: str) -> None:
        """Say what begins now; a new name is a new step."""
        is_new = name != self._name
        self._name = name
        self._step += is_new
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        head = f"{minutes}:{seconds:02} [{self._step}/{self._steps}] {name}"
        if self._is_live:
            self._write_over(f"{head}: {detail}")
        elif is_new:
            self._terminal.write(head)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._is_live:
            self._write_over("")

    def _write_over(self, text: str) -> None:
        # One column stays free: in the last one, some terminals begin a new line.
        room = self._terminal.columns - 1
        line = left(self._terminal.label(text, room), room)
        self._terminal.stream.write(f"\r{line}\r" if not text else f"\r{line}")
        self._terminal.stream.flush()
