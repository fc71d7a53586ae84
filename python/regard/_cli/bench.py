"""The command ``bench``: its arguments, its run and the output of its results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import regard
from regard._bench import plot
from regard._bench.cases import Case, Comparison, select
from regard._bench.document import document_of
from regard._bench.fresh_process import run_in_fresh_process
from regard._bench.measuring import Request, measure
from regard._bench.report import curve_of, list_of_cases, report_of
from regard._bench.results import Results
from regard._bench.shapes import CURVE_GRAMMAR, GRAMMAR, parse_curve, parse_lengths, parse_shape
from regard._cli.arguments import add_threads, whole_number
from regard._cli.progress import Progress
from regard._show.text import printable

ROUNDS, QUICK_ROUNDS, MAX_ROUNDS = 5, 2, 1000
CURVE_SHAPE, CURVE_LENGTHS = "1,4,64", "128:32768"
_PATIENCE_SECONDS = 600

SUMMARY = "time regard, NumPy, PyTorch and ONNX Runtime"
USAGE = "python -m regard bench [options]"

DESCRIPTION = """\
Time regard, NumPy, PyTorch and ONNX Runtime, as far as they are installed: every
engine gets the same arrays and threads, in turns, and its output is compared with
float64 first. The limits of the machine are measured in the same run: how fast it
multiplies and adds (fma peak), and how fast it reads memory (read bandwidth).

Without options, a table of cases is timed, which takes about six minutes on two
cores, or about one with --quick.
"""

EPILOG = f"""\
shapes:
  --shape        {GRAMMAR}
  with --curve   {CURVE_GRAMMAR}
  One size stands for both of a pair. With --causal, query i sees keys 0 to i, and there
  must be as many queries as keys.

examples:
  python -m regard bench --quick
  python -m regard bench --shape 1,8,512,64 --shape 1,32/8,1/4096,128
  python -m regard bench --curve --shape 1,32/8,128 --causal --plot curve.pdf

columns:
  time is that of regard, as a median; the other numbers are us, GFLOP/s or GB/s.
  GFLOP/s count what is visible: a causal square counts as its half. GB/s of a decode
  step count the keys and values once. limit is the part of the fma peak, or of the read
  bandwidth, that regard reaches. vs best is regard's speed relative to the fastest other
  engine. An engine that would need too much memory or time is left out, and the word
  says why. ONNX Runtime needs the onnx package too: its Attention operator is timed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    what = parser.add_argument_group("what is timed")
    what.add_argument("--list", action="store_true", help="show the table of cases, time nothing")
    what.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="only the cases of the table with this in their name; may be repeated",
    )
    what.add_argument("--quick", action="store_true", help="fewer rounds, and only short cases")
    what.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="B,H,L,D",
        help="this problem instead of the table; may be repeated",
    )
    what.add_argument(
        "--curve",
        type=_lengths,
        nargs="?",
        const=parse_lengths(CURVE_LENGTHS),
        metavar="FIRST:LAST",
        help=f"one shape over lengths that double, by default {CURVE_SHAPE} over {CURVE_LENGTHS}",
    )
    what.add_argument("--causal", action="store_true", help="causal, for --shape and --curve")
    how = parser.add_argument_group("how")
    add_threads(how)
    how.add_argument(
        "--rounds",
        type=whole_number(MAX_ROUNDS),
        metavar="N",
        help=f"how many turns each engine has, by default {ROUNDS}, or {QUICK_ROUNDS} with --quick",
    )
    how.add_argument(
        "--target", type=_target, metavar="NAME", help="the instruction set that regard uses"
    )
    where = parser.add_argument_group("where the results go")
    where.add_argument("--json", metavar="FILE", help="write every number to a file")
    where.add_argument(
        "--plot",
        metavar="FILE",
        type=_picture,
        help="draw a picture, as PNG, SVG or PDF; needs matplotlib",
    )
    where.add_argument(
        "--goals",
        action="store_true",
        help="for developers: regard's goals, and which are met",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status: 1 if a regard result was wrong."""
    if options.list:
        _print(list_of_cases())
        return 0
    parser: argparse.ArgumentParser = options.parser
    threads = regard.get_num_threads() if options.threads is None else options.threads
    cases, comparisons = _selected(options)
    comparisons = [row for row in comparisons if max(row.threads or (1,)) <= threads]
    if not cases and not comparisons:
        parser.error(f"argument --case: what it names compares more threads than {threads}")
    if options.plot and all(case.group.limit is None for case in cases):
        parser.error(
            "argument --plot: none of these cases has a limit of the machine to compare with"
        )
    draw = plot.pen() if options.plot else None
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    with ExitStack() as files:
        document = files.enter_context(_output(parser, "--json", options.json))
        picture = files.enter_context(_output(parser, "--plot", options.plot))
        results = _measure(Request(cases, threads, rounds, comparisons), options.target)
        if options.curve:
            _print(curve_of(results))
        else:
            _print(report_of(results, with_goals=options.goals))
        if document is not None:
            content = document_of(results, with_goals=options.goals)
            document.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        if picture is not None and draw is not None:
            content_of = plot.draw_curve if options.curve else plot.draw_bars
            picture.write_bytes(draw(content_of, results, picture.suffix[1:]))
    return 0 if results.is_sound else 1


def _selected(options: argparse.Namespace) -> tuple[Sequence[Case], Sequence[Comparison]]:
    parser: argparse.ArgumentParser = options.parser
    is_own = bool(options.shape or options.curve)
    if options.causal and not is_own:
        parser.error("argument --causal: needs --shape or --curve")
    if options.case and is_own:
        parser.error("argument --case: does not go with --shape or --curve")
    if options.goals and is_own:
        parser.error("argument --goals: does not go with --shape or --curve")
    if options.curve and len(options.shape) > 1:
        parser.error("argument --shape: only one goes with --curve")
    try:
        if options.curve:
            shape = options.shape[0] if options.shape else CURVE_SHAPE
            return parse_curve(shape, options.curve, is_causal=options.causal), []
        if options.shape:
            return [parse_shape(text, is_causal=options.causal) for text in options.shape], []
    except ValueError as error:
        parser.error(f"argument --shape: {error}")
    try:
        return select(options.case, quick=options.quick)
    except ValueError as error:
        parser.error(f"argument --case: {error}")


def _measure(request: Request, target: str | None) -> Results:
    # The limits are two of the steps: they are measured before and after the cases.
    progress = Progress(len(request.cases) + len(request.comparisons) + 2)
    try:
        results: Results = run_in_fresh_process(
            measure,
            request,
            threads=request.threads,
            patience=_PATIENCE_SECONDS,
            environment={} if target is None else {"REGARD_TARGET": target},
            on_message=progress.show,
        )
    finally:
        progress.clear()
    return results


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(printable(line))


@contextmanager
def _output(
    parser: argparse.ArgumentParser, option: str, name: str | None
) -> Iterator[Path | None]:
    """Yield a writable file, opened before the results exist."""
    if name is None:
        yield None
        return
    path = Path(name)
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        parser.error(f"argument {option}: cannot write {name!r}: {error.strerror}")
    try:
        yield path
    finally:
        if is_new and path.stat().st_size == 0:
            path.unlink()  # an empty file would look like a result


def _lengths(text: str) -> list[int]:
    try:
        return parse_lengths(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _target(text: str) -> str:
    if text not in regard.cpu_targets():
        runnable = ", ".join(regard.cpu_targets())
        raise argparse.ArgumentTypeError(f"must be one that runs here ({runnable}), got {text!r}")
    return text


def _picture(text: str) -> str:
    if Path(text).suffix not in plot.SUFFIXES:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(plot.SUFFIXES)}, got {text!r}")
    return text
