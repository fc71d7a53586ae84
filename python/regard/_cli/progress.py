"""A line on stderr that shows the progress of a long command."""

from __future__ import annotations

import sys
import time

from regard._show.text import printable


class Progress:
    """The progress line: overwritten on a terminal, and elsewhere a new line for each step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._name = ""
        self._started = time.monotonic()
        self._is_live = sys.stderr is not None and sys.stderr.isatty()

    def show(self, message: tuple[str, str]) -> None:
        """Show the name of the current step and its part; a new name begins a new step."""
        name, part = message
        is_new = name != self._name
        self._name = name
        self._step += is_new
        minutes, seconds = divmod(round(time.monotonic() - self._started), 60)
        line = printable(f"{minutes}:{seconds:02} [{self._step}/{self._steps}] {name}")
        if self._is_live:
            self._overwrite(f"{line}: {part}"[:79])
        elif is_new:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the line."""
        if self._is_live:
            self._overwrite("")

    def _overwrite(self, line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
