"""The main job: attention on a sentence, and its speed beside that of the other engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

import regard

from . import timing
from .layout import GAP, INDENT, paragraph
from .stages import (
    SCALE,
    SEED,
    TOLERANCE,
    Array,
    Check,
    NotebookCheck,
    Stages,
    check_fused,
    check_notebook,
    run_stages,
)
from .terminal import Terminal
from .walkthrough import show_checks, show_stages, show_title
from .words import EXAMPLE, tokenize


def run(
    terminal: Terminal,
    sentence: str | None,
    *,
    threads: int | None,
    with_timing: bool,
    as_json: bool,
) -> int:
    """Run the example on a sentence.

    Parameters
    ----------
    terminal : Terminal
        Where the result goes.
    sentence : str or None
        The words, by default the notebook's.
    threads : int or None
        Threads to use from now on, by default regard's.
    with_timing : bool
        Whether the engines are timed.
    as_json : bool
        Whether the result is JSON rather than text.

    Returns
    -------
    int
        0, or 1 if a check failed.
    """
    tokens = tokenize(EXAMPLE if sentence is None else sentence)
    if threads is not None:
        regard.set_num_threads(threads)
    stages = run_stages(tokens)
    check = check_fused(stages)
    notebook = check_notebook(tokens) if tokens == tokenize(EXAMPLE) else None

    if as_json:
        timed = timing.run_timing(regard.get_num_threads()) if with_timing else None
        result = _as_dict(tokens, stages, check, notebook, timed)
        terminal.write(json.dumps(result, allow_nan=False))
    else:
        show_title(terminal, regard.__version__, tokens)
        show_stages(terminal, tokens, stages)
        show_checks(terminal, check, notebook)
        if with_timing:
            _show_timing(terminal)
    return 0 if check.passed and (notebook is None or notebook.passed) else 1


def _show_timing(terminal: Terminal) -> None:
    threads = regard.get_num_threads()
    times = terminal.glyphs.times
    problem = f"{timing.HEADS} heads {times} {timing.LENGTH} tokens {times} {timing.HEAD_DIM}"
    unit = "thread" if threads == 1 else "threads"
    # Written before the engines run, so that the wait explains itself.
    terminal.write(
        "",
        *paragraph(
            terminal, f"{problem}, float32, {threads} {unit}, target {regard.active_target()}"
        ),
    )
    result = timing.run_timing(threads)
    slowest = max(row.milliseconds for row in result.rows)
    for row in result.rows:
        numbers = (
            f"{INDENT}{row.engine:<8}{row.milliseconds:7.2f} ms"
            f"{row.gflops:5.0f} GFLOP/s{row.ratio:6.1f}{times}"
        )
        room = max(0, terminal.columns - len(numbers) - len(GAP))
        bar = terminal.glyphs.bar * round(room * row.milliseconds / slowest)
        terminal.write(numbers + GAP + terminal.accent(bar))
    for engine, reason in result.failed.items():
        terminal.write(*paragraph(terminal, f"{engine} failed: {terminal.text(reason)}"))


def _as_dict(
    tokens: Sequence[str],
    stages: Stages,
    check: Check,
    notebook: NotebookCheck | None,
    timed: timing.Timing | None,
) -> dict[str, Any]:
    arrays = {name: _finite_or_none(array) for name, array in vars(stages).items()}
    return {
        "version": regard.__version__,
        "target": regard.active_target(),
        "threads": regard.get_num_threads(),
        "tokens": list(tokens),
        "is_causal": True,
        "scale": SCALE,
        "seed": SEED,
        "stages": arrays,
        "check": {**asdict(check), "tolerance": TOLERANCE, "passed": check.passed},
        "notebook": {**asdict(notebook), "passed": notebook.passed} if notebook else None,
        "timing": None if timed is None else _timing_as_dict(timed),
    }


def _finite_or_none(array: Array) -> list[Any]:
    """Give nested lists with None for the -inf of hidden keys, which JSON cannot say."""
    values = array.astype(object)
    values[~np.isfinite(array)] = None
    nested: list[Any] = values.tolist()
    return nested


def _timing_as_dict(timed: timing.Timing) -> dict[str, Any]:
    shape = [1, timing.HEADS, timing.LENGTH, timing.HEAD_DIM]
    return {"shape": shape, "dtype": "float32", "flops": timing.PROBLEM.flops, **asdict(timed)}
