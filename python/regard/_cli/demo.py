"""The command ``demo``: attention on a sentence, and a speed comparison with other engines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import regard
from regard._bench.fresh_process import run_in_fresh_process
from regard._bench.measuring import Request, measure
from regard._bench.problems import parse_shape
from regard._cli.arguments import THREADS, add_options
from regard._cli.stages import (
    EXAMPLE,
    SCALE,
    SEED,
    Array,
    check_fused,
    check_notebook,
    run_stages,
    tokenize,
)
from regard._cli.walkthrough import verdict, walkthrough
from regard._show.text import printable

SUMMARY = "attention on a sentence, step by step; the default command"
USAGE = "python -m regard [demo] [--threads N] [--no-timing] [--json] [word ...]"

DESCRIPTION = """\
Take a sentence through embedding, position, projection, scores, scaling, mask,
softmax and context, check that one fused call gives the same result, and time a
larger problem in regard, NumPy, PyTorch and ONNX Runtime, if they are installed.
"""
EPILOG = ""

TIMED_SHAPE = "1,12,512,64"
ROUNDS = 3
_PATIENCE_SECONDS = 120
_BAR_WIDTH = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("words", nargs="*", metavar="word", help=f"by default: {EXAMPLE}")
    add_options(
        parser,
        ("--json", bool, False, "print one JSON object"),
        ("--no-timing", bool, False, "skip the timing"),
        THREADS,
    )


def refuse_one_word(options: argparse.Namespace, commands: Sequence[str]) -> None:
    """Reject a one-word sentence if no command is named: it may be a mistyped command."""
    words = " ".join(options.words).split()
    if len(words) == 1:
        options.parser.error(
            f"{words[0]!r} is not a command ({', '.join(commands)} come first), nor a sentence "
            f"of several words; for a sentence of one word: python -m regard demo {words[0]}"
        )


def run(options: argparse.Namespace) -> int:
    """Run the example, and return the exit status: 1 if a check failed."""
    try:
        tokens = tokenize(" ".join(options.words) if options.words else EXAMPLE)
    except ValueError as error:
        options.parser.error(str(error))
    stages = run_stages(tokens)
    check = check_fused(stages)
    notebook = check_notebook(tokens) if tokens == tokenize(EXAMPLE) else None
    if options.json:
        document = {
            "version": regard.__version__,
            "target": regard.active_target(),
            "threads": regard.get_num_threads(),
            "tokens": tokens,
            "is_causal": True,
            "scale": SCALE,
            "seed": SEED,
            "stages": {name: _finite_or_none(array) for name, array in stages.items()},
            "check": check,
            "notebook": notebook,
            "timing": None if options.no_timing else _timing(),
        }
        print(json.dumps(document, allow_nan=False))
    else:
        for line in (*walkthrough(regard.__version__, tokens, stages), *verdict(check, notebook)):
            print(line)
        if not options.no_timing:
            for line in _timing_lines():
                print(line, flush=True)
    return 0 if check["passed"] and (notebook is None or notebook["passed"]) else 1


def _finite_or_none(array: Array) -> list[Any]:
    """Return nested lists with None for the -inf of hidden keys, which JSON does not support."""
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    nested: list[Any] = values.tolist()
    return nested


def _timing() -> dict[str, Any]:
    """Time all engines: a row for each, and the reasons why other installed engines have none."""
    threads = regard.get_num_threads()
    request = Request([parse_shape(TIMED_SHAPE)], threads, ROUNDS, with_limits=False)
    results = run_in_fresh_process(measure, request, threads=threads, patience=_PATIENCE_SECONDS)
    (row,) = results.cases
    if "regard" in row.failed:
        raise RuntimeError(f"regard failed the timing: {row.failed['regard']}")
    rows = [
        {
            "engine": engine,
            "milliseconds": samples.seconds * 1e3,
            "gflops": row.case.problem.flops / samples.seconds / 1e9,
            "ratio": row.speed_over(engine),
            "error": row.errors[engine],
        }
        for engine, samples in row.samples.items()
    ]
    return {
        "shape": [int(size) for size in TIMED_SHAPE.split(",")],
        "dtype": "float32",
        "flops": row.case.problem.flops,
        "rows": rows,
        "failed": results.broken | row.failed,
    }


def _timing_lines() -> Iterator[str]:
    threads = regard.get_num_threads()
    unit = "thread" if threads == 1 else "threads"
    heads, length, dim = TIMED_SHAPE.split(",")[1:]
    # Yielded before the engines run, to explain the wait.
    yield (
        f"\n  {heads} heads × {length} tokens × {dim}, float32, {threads} {unit}, "
        f"target {regard.active_target()}"
    )
    timing = _timing()
    slowest = max(row["milliseconds"] for row in timing["rows"])
    for row in timing["rows"]:
        bar = "━" * round(_BAR_WIDTH * row["milliseconds"] / slowest)
        yield (
            f"  {row['engine']:<12}{row['milliseconds']:7.2f} ms"
            f"{row['gflops']:5.0f} GFLOP/s{row['ratio']:6.1f}×  {bar}"
        )
    for engine, reason in timing["failed"].items():
        yield f"  {engine} failed: {printable(reason)}"
