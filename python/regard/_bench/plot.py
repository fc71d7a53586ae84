"""The results as a picture: bars and the limits of the machine, or curves over the length."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any

from regard._bench.cases import Limit
from regard._bench.problems import Attention
from regard._bench.results import CaseResult, Results

SUFFIXES = (".png", ".svg", ".pdf")
Draw = Callable[[Any, Results], Any]

# Medium tones on no background are readable on light and dark pages.
_INK = "#787d84"
_COLORS = {
    "regard": "#2d7dd2",
    "PyTorch": "#d9822b",
    "ONNX Runtime": "#3f9d75",
    "NumPy": "#a58bb5",
}
_WIDE, _NARROW, _BETWEEN = 0.26, 0.15, 0.26
_INCHES_A_ROW, _INCHES_A_PANEL, _INCHES_AROUND, _WIDTH, _DPI = 0.34, 0.65, 0.85, 7.6, 130

_PANELS: tuple[tuple[Limit, str, int], ...] = (
    ("fma peak", "GFLOP/s", 0),
    ("read bandwidth", "GB/s", 1),
)


def pen() -> Callable[[Draw, Results, str], bytes]:
    """Import matplotlib, and return the function that draws the content of a file."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"--plot needs matplotlib; {error.name} is not installed: pip install matplotlib"
        ) from None

    def draw(content: Draw, results: Results, file_format: str) -> bytes:
        picture = io.BytesIO()
        content(figure, results).savefig(picture, format=file_format, dpi=_DPI, transparent=True)
        return picture.getvalue()

    return draw


def draw_bars(make_figure: Any, results: Results) -> Any:
    """Draw the cases that have a limit, in a panel for each limit."""
    panels = [(panel, rows) for panel in _PANELS if (rows := _rows(results, panel[0]))]
    counts = [len(rows) for _, rows in panels]
    height = _INCHES_A_ROW * sum(counts) + _INCHES_A_PANEL * len(panels) + _INCHES_AROUND
    figure = make_figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
    engines = _engines([row for _, rows in panels for row in rows])
    for ((limit, unit, decimals), rows), axis in zip(panels, axes, strict=True):
        _draw_panel(axis, results, limit, rows, engines)
        speed = results.limit(limit) / 1e9
        counted = f"{unit} of keys and values read" if limit == "read bandwidth" else unit
        axis.set_xlabel(
            f"{counted}; %: regard's part of the measured {limit}, {speed:.{decimals}f} {unit}",
            fontsize=8,
            color=_INK,
        )
    _finish(figure, axes[0], results)
    return figure


def _rows(results: Results, limit: Limit) -> list[CaseResult]:
    return [row for row in results.cases if row.case.group.limit == limit]


def _engines(rows: list[CaseResult]) -> list[str]:
    return [engine for engine in _COLORS if any(engine in row.samples for row in rows)]


def _draw_panel(
    axis: Any, results: Results, limit: Limit, rows: list[CaseResult], engines: list[str]
) -> None:
    widths = {engine: _WIDE if engine == "regard" else _NARROW for engine in engines}
    step = sum(widths.values()) + _BETWEEN
    at = 0.0
    for engine in engines:
        center = at + widths[engine] / 2
        at += widths[engine]
        shown = [(i * step + center, row) for i, row in enumerate(rows) if engine in row.samples]
        axis.barh(
            [y for y, _ in shown],
            [row.rate(engine) for _, row in shown],
            height=0.86 * widths[engine],
            color=_COLORS[engine],
            label=engine,
        )
        if engine == "regard":
            for y, row in shown:
                axis.annotate(
                    f"{results.share(row):.0%}",
                    (row.rate(engine), y),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7.5,
                    color=_COLORS["regard"],
                )
    speed = results.limit(limit) / 1e9
    axis.axvline(speed, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axis.annotate(
        limit,
        (speed, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        fontsize=7.5,
        color=_INK,
    )
    axis.set_yticks(
        [i * step + (step - _BETWEEN) / 2 for i in range(len(rows))], [row.name for row in rows]
    )
    axis.set_ylim(len(rows) * step - _BETWEEN / 2, -_BETWEEN / 2)
    rates = [row.rate(engine) for row in rows for engine in row.samples]
    axis.set_xlim(0, 1.08 * max([speed, *rates]))
    _style(axis)


def draw_curve(make_figure: Any, results: Results) -> Any:
    """Draw the time and the GFLOP/s of each engine over the length."""
    figure = make_figure(figsize=(_WIDTH, 6.4), layout="constrained")
    times, rates = figure.subplots(2, 1, sharex=True)
    rows = [
        (row.case.problem.kv_len, row)
        for row in results.cases
        if isinstance(row.case.problem, Attention)
    ]
    for engine in _engines(results.cases):
        points = [(length, row) for length, row in rows if engine in row.samples]
        lengths = [length for length, _ in points]
        look = {"color": _COLORS[engine], "marker": "o", "markersize": 3.5, "linewidth": 1.4}
        seconds = [row.samples[engine].seconds for _, row in points]
        times.plot(lengths, [1e3 * one for one in seconds], label=engine, **look)
        rates.plot(lengths, [row.rate(engine) for _, row in points], **look)
    peak = results.limit("fma peak") / 1e9
    rates.axhline(peak, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    rates.annotate(
        f"measured fma peak, {peak:.0f} GFLOP/s",
        (0, peak),
        xycoords=("axes fraction", "data"),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=7.5,
        color=_INK,
    )
    times.set_yscale("log")
    times.set_ylabel("ms per call", fontsize=8, color=_INK)
    rates.set_ylim(0, 1.12 * peak)
    rates.set_ylabel("GFLOP/s", fontsize=8, color=_INK)
    rates.set_xscale("log", base=2)
    rates.set_xticks([length for length, _ in rows], [f"{length}" for length, _ in rows])
    first, last = results.cases[0].name, results.cases[-1].name
    rates.set_xlabel(f"length of queries and keys, {first} to {last}", fontsize=8, color=_INK)
    for axis in (times, rates):
        axis.grid(color=_INK, alpha=0.2, linewidth=0.6)
        _style(axis)
    _finish(figure, times, results)
    return figure


def _style(axis: Any) -> None:
    axis.tick_params(which="both", colors=_INK, labelsize=8, length=0)
    axis.spines[:].set_visible(False)


def _finish(figure: Any, axis: Any, results: Results) -> None:
    """Add the title and the legend."""
    machine = results.machine
    unit = "thread" if results.threads == 1 else "threads"
    title = f"{machine['cpu']}, {machine['target']}, float32, {results.threads} {unit}"
    figure.suptitle(f"{title}, {results.date[:10]}", color=_INK, fontsize=8.5)
    handles, labels = axis.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8.5
    )
    for text in legend.get_texts():
        text.set_color(_INK)
