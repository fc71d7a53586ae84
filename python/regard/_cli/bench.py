"""The command ``bench``: its arguments, its run and the output of its results."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import regard
from regard._bench import plot
from regard._bench.fresh_process import run_in_fresh_process
from regard._bench.measuring import Request, measure
from regard._bench.problems import GRAMMAR, Case, parse_shape
from regard._bench.report import report_of
from regard._bench.results import Results
from regard._cli.arguments import THREADS, add_options, whole_number
from regard._cli.terminal import Progress
from regard._runtime.saving import check_place, write_whole
from regard._show.text import printable

# The default cases: a small call, BERT, GPT-2, Llama, and a decode step of Llama.
TYPICAL = (
    ("1,1,6,2", False),
    ("8,12,128,64", False),
    ("1,12,1024,64", True),
    ("1,32/8,2048,128", True),
    ("1,32/8,1/4096,128", False),
)
ROUNDS, QUICK_ROUNDS, MAX_ROUNDS = 5, 2, 1000
_PATIENCE_SECONDS = 600

SUMMARY = "time regard, NumPy, PyTorch and ONNX Runtime"
USAGE = "python -m regard bench [options]"

DESCRIPTION = """\
Time regard, NumPy, PyTorch and ONNX Runtime, if they are installed. All engines get
the same arrays and the same number of threads, and their calls are interleaved. Their
outputs are first compared with float64. The limits of the machine are measured in the
same run: the speed of multiply-adds (fma peak), and of reads from memory (read
bandwidth).

Without options, five typical problems are timed, which takes about a minute.
"""

EPILOG = f"""\
shapes:
  {GRAMMAR}
  A single size replaces a pair of equal sizes. With --causal, query i sees keys 0 to i,
  and there must be as many queries as keys.

examples:
  python -m regard bench
  python -m regard bench --shape 1,8,512,64 --shape 1,32/8,1/4096,128
  python -m regard bench --shape 1,32/8,2048,128 --causal --plot bench.pdf

columns:
  time is the median time of regard. The other columns are in us, GFLOP/s or GB/s.
  GFLOP/s count visible keys only: half of a causal square. GB/s of a decode step count
  keys and values once. limit is the share of the fma peak, or of the read bandwidth,
  that regard reaches. vs best is the speed of regard relative to the fastest other
  engine. An engine that would need too much memory or time is left out, and a keyword
  states the reason. ONNX Runtime is timed with its Attention operator, which requires
  the onnx package.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    what = parser.add_argument_group("problems")
    what.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="B,H,L,D",
        help="time this problem; may be repeated",
    )
    add_options(what, ("--causal", bool, False, "causal, for --shape"))
    add_conditions(parser)


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for the conditions and the output of a run."""
    rounds = f"number of rounds per engine, by default {ROUNDS}, or {QUICK_ROUNDS} with --quick"
    add_options(
        parser.add_argument_group("conditions"),
        THREADS,
        ("--rounds N", whole_number(MAX_ROUNDS), None, rounds),
        ("--quick", bool, False, "fewer rounds"),
        ("--target NAME", _target, None, "the instruction set that regard uses"),
    )
    add_options(
        parser.add_argument_group("output"),
        ("--json FILE", _file, None, "write all numbers to a file"),
        ("--plot FILE", _picture, None, "draw a picture, as PNG, SVG or PDF; needs matplotlib"),
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status: 1 if a regard result was wrong."""
    request = Request(_selected(options), *conditions_of(options))
    return measure_and_show(options, request, measure, report_of, plot.draw_bars)


def conditions_of(options: argparse.Namespace) -> tuple[int, int]:
    """Return the number of threads and of rounds."""
    threads = regard.get_num_threads() if options.threads is None else options.threads
    return threads, options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)


def measure_and_show(
    options: argparse.Namespace,
    request: Request,
    measure: Callable[..., Any],
    report: Callable[[Any], Iterable[str]],
    draw: Callable[[Any, Any], Any],
    document: Callable[[Any], dict[str, Any]] = Results.document,
    *,
    steps: int = 0,
) -> int:
    """Measure a request, print and write the results, and return the exit status.

    `measure` runs in a fresh process. `steps` is the number of its steps in addition to the cases.
    `report` and `document` convert its results, and `draw` draws them.
    """
    parser: argparse.ArgumentParser = options.parser
    if options.plot and all(case.group.limit is None for case in request.cases):
        parser.error("argument --plot: none of these cases has a machine limit to compare with")
    pen = plot.pen() if options.plot else None
    # The limits are two of the steps: they are measured before and after the cases.
    with Progress(len(request.cases) + steps + 2) as progress:
        results = run_in_fresh_process(
            measure,
            request,
            threads=request.threads,
            patience=_PATIENCE_SECONDS,
            environment={} if options.target is None else {"REGARD_TARGET": options.target},
            on_message=progress.show,
        )
    for line in report(results):
        print(printable(line))
    if options.json:
        text = json.dumps(document(results), indent=1, allow_nan=False)
        write_whole(options.json, [f"{text}\n".encode()], True)
    if pen is not None:
        write_whole(options.plot, [pen(draw, results, Path(options.plot).suffix[1:])], True)
    return 0 if results.is_sound else 1


def _selected(options: argparse.Namespace) -> list[Case]:
    parser: argparse.ArgumentParser = options.parser
    if options.causal and not options.shape:
        parser.error("argument --causal: needs --shape")
    try:
        shapes = [(text, options.causal) for text in options.shape] or TYPICAL
        return [parse_shape(text, is_causal=is_causal) for text, is_causal in shapes]
    except ValueError as error:
        parser.error(f"argument --shape: {error}")


def _target(text: str) -> str:
    if text not in regard.cpu_targets():
        runnable = ", ".join(regard.cpu_targets())
        raise argparse.ArgumentTypeError(f"must be one that runs here ({runnable}), got {text!r}")
    return text


def _picture(text: str) -> str:
    if Path(text).suffix not in plot.SUFFIXES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(plot.SUFFIXES)}, got {text!r}")
    return _file(text)


def _file(text: str) -> str:
    """Check that a file can be written, before anything is measured."""
    try:
        path = check_place(text, True)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not os.access(path if os.path.exists(path) else os.path.dirname(path) or ".", os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a place that you may write to, got {text!r}")
    return path
