"""The command line: ``python -m regard``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments. Default: the arguments of the process.

    Returns
    -------
    int
        The exit status: 0 on success, 1 if the command failed or was interrupted, 2 if the
        arguments are wrong.
    """
    # The commands are imported inside the try, so that Ctrl-C during the imports is handled too.
    try:
        from regard._cli.commands import run
        from regard._cli.terminal import prepare_output

        prepare_output()
        status = run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        message = "interrupted"
    except BrokenPipeError:
        message = ""  # the reader closed the pipe, as `| head` does
    except Exception as error:
        if sys.flags.dev_mode:  # python -X dev shows the traceback
            raise
        from regard._show.text import printable

        text = " ".join(printable(str(error)).split())
        message = f"error: {type(error).__name__}" + (f": {text}" if text else "")
    _abandon_output()
    if message and sys.stderr is not None:
        print(f"regard: {message}", file=sys.stderr)
    return 1 if message else 0


def _abandon_output() -> None:
    """Discard buffered output, because flushing it at exit could fail again."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
