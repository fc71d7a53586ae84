"""The command: its arguments, the run, and where the results go."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import regard

from ..arguments import MAX_THREADS, Parser, whole_number
from ..fresh_process import run_in_fresh_process
from ..progress import Progress
from ..terminal import Terminal
from . import measure, report
from .cases import select
from .plot import pen
from .results import Results, verdicts

ROUNDS, QUICK_ROUNDS, MAX_ROUNDS = 5, 2, 1000
_PATIENCE_SECONDS = 600

DESCRIPTION = """\
Time regard beside NumPy, PyTorch and ONNX Runtime, as far as they are installed:
every engine on the same arrays, with the same threads, in turns. The limits of the
machine are measured in the same run: how fast it multiplies and adds, and how fast
it reads memory. Before an engine is timed its output is held beside float64's.

All of it takes six minutes or so on two cores; --quick takes one.
"""

EPILOG = """\
GFLOP/s count what is visible: a causal square counts half. Decoding counts the bytes
of keys and values once. Times are medians, iqr is from the first quartile to the third;
limit is the part of the machine's limit that regard reaches, vs best its speed against
the fastest other engine.
ONNX Runtime is asked through its Attention operator, which needs the onnx package too.

exit status: 0 all went well, 1 a failure, a wrong result or Ctrl-C, 2 wrong arguments
"""


def run(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        What follows its name.

    Returns
    -------
    int
        The exit status.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    terminal = Terminal.of(sys.stdout)
    if options.list:
        report.show_list(terminal)
        return 0
    try:
        cases, comparisons = select(options.case, quick=options.quick)
    except ValueError as error:
        parser.error(f"argument --case: {error}")
    draw = None
    threads = regard.get_num_threads() if options.threads is None else options.threads
    comparisons = [row for row in comparisons if max(row.threads or (1,)) <= threads]
    if not cases and not comparisons:
        parser.error(f"argument --case: what it names compares more threads than {threads}")
    if options.plot is not None:
        draw = pen()
        if all(case.group.yardstick is None for case in cases):
            parser.error("argument --plot: none of these cases has a limit to be drawn beside")
    with (
        _Output(parser, "--json", options.json) as json_file,
        _Output(parser, "--plot", options.plot) as plot_file,
    ):
        results = _measure(
            measure.Request(
                [case.name for case in cases],
                [comparison.name for comparison in comparisons],
                threads,
                options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            ),
            options.target,
        )
        report.show(terminal, results)
        json_file.write(json.dumps(as_document(results), indent=1, allow_nan=False) + "\n")
        if draw is not None:
            plot_file.write(draw(results, plot_file.format))
    return 0 if results.is_sound else 1


def _measure(request: measure.Request, target: str | None) -> Results:
    # The limits come twice: before everything and after it.
    steps = len(request.cases) + len(request.comparisons) + 2
    with Progress(sys.stderr, steps) as progress:
        answer = run_in_fresh_process(
            measure.__name__,
            asdict(request),
            threads=request.threads,
            patience=_PATIENCE_SECONDS,
            environment={} if target is None else {"REGARD_TARGET": target},
            on_message=lambda message: progress.show(*message),
        )
    return Results.of(answer)


def as_document(results: Results) -> dict[str, Any]:
    """Give everything that was measured, and what follows from it, as JSON can say it.

    Parameters
    ----------
    results : Results
        The run.

    Returns
    -------
    dict
        The fields of `Results`, with shapes, work, medians and rates in each case.
    """
    document = asdict(results)
    for saved, row in zip(document["cases"], results.cases, strict=True):
        case = row.case
        saved |= {
            "group": case.group.title,
            "problem": asdict(case.problem),
            "flops": case.problem.flops,
            "bytes": case.problem.bytes,
            "unit": case.group.unit,
            "share": results.share(row),
            "best_peer": row.best_peer,
        }
        for engine, samples in row.samples.items():
            saved["samples"][engine] |= {
                "seconds": samples.seconds,
                "spread": samples.spread,
                "rate": row.rate(engine),
                "regard_is": row.speed_against(engine),
            }
    for saved, comparison in zip(document["comparisons"], results.comparisons, strict=True):
        saved |= {
            "about": comparison.comparison.about,
            "value": comparison.value,
            "limit": comparison.comparison.limit,
            "is_met": comparison.is_met,
        }
    goals = [asdict(verdict) | {"is_met": verdict.is_met} for verdict in verdicts(results)]
    return document | {"goals": goals}


class _Output:
    """A file that is known to be writable before the results are there."""

    def __init__(self, parser: Parser, option: str, path: str | None) -> None:
        self._parser, self._option = parser, option
        self._path = None if path is None else Path(path)

    @property
    def format(self) -> str:
        """What the file's name ends in."""
        return "" if self._path is None else self._path.suffix[1:]

    def write(self, content: str | bytes) -> None:
        """Replace what the file holds."""
        if self._path is not None:
            data = content.encode() if isinstance(content, str) else content
            self._path.write_bytes(data)
            self._is_new = False

    def __enter__(self) -> _Output:
        self._is_new = self._path is not None and not self._path.exists()
        if self._path is not None:
            try:
                self._path.open("ab").close()
            except OSError as error:
                self._parser.error(
                    f"argument {self._option}: cannot write {str(self._path)!r}: {error.strerror}"
                )
        return self

    def __exit__(self, *_reason: object) -> None:
        # An empty file would look like a result.
        if self._path is not None and self._is_new:
            self._path.unlink(missing_ok=True)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m regard bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="show the cases and time nothing")
    parser.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="only the cases with this in their name; may be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds, and without the cases that take long"
    )
    parser.add_argument(
        "--rounds",
        type=whole_number(MAX_ROUNDS),
        metavar="N",
        help=f"how many turns each engine has, by default {ROUNDS}",
    )
    parser.add_argument(
        "--threads",
        type=whole_number(MAX_THREADS),
        metavar="N",
        help="threads to use, the same for all engines",
    )
    parser.add_argument(
        "--target", type=_target, metavar="NAME", help="the instruction set that regard uses"
    )
    parser.add_argument("--json", metavar="FILE", help="write every number to a file")
    parser.add_argument(
        "--plot", metavar="FILE", type=_picture, help="draw bars, as PNG or SVG; needs matplotlib"
    )
    return parser


def _target(text: str) -> str:
    if text not in regard.cpu_targets():
        runnable = ", ".join(regard.cpu_targets())
        raise argparse.ArgumentTypeError(f"must be one that runs here ({runnable}), got {text!r}")
    return text


def _picture(text: str) -> str:
    if Path(text).suffix not in (".png", ".svg"):
        raise argparse.ArgumentTypeError(f"must end in .png or .svg, got {text!r}")
    return text
