"""The results as a picture: bars beside the limit of the machine."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import Any

from .cases import DECODE, FORWARD, PRODUCT, Yardstick
from .results import CaseResult, Results

# On no background, in middle tones: the picture reads on a light page and on a dark one.
_INK = "#787d84"
_COLOURS = {
    "regard": "#2d7dd2",
    "PyTorch": "#d9822b",
    "ONNX Runtime": "#3f9d75",
    "NumPy": "#a58bb5",
}
_WIDE, _NARROW, _BETWEEN = 0.26, 0.15, 0.26
_INCHES_A_ROW, _INCHES_A_PANEL, _INCHES_AROUND, _WIDTH, _DPI = 0.34, 0.65, 0.55, 7.6, 130

_PANELS: tuple[tuple[Yardstick, str, str, int], ...] = (
    ("peak", "GFLOP/s", "fma peak", 0),
    ("bandwidth", "GB/s of keys and values", "read bandwidth", 1),
)


def pen() -> Callable[[Results, str], bytes]:
    """Find matplotlib.

    Returns
    -------
    callable
        Takes results and ``"png"`` or ``"svg"``, and draws the cases that have a limit.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    try:
        figure = importlib.import_module("matplotlib.figure").Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"--plot needs matplotlib; {error.name} is not installed: pip install matplotlib"
        ) from None
    return lambda results, file_format: _draw(figure, results, file_format)


def _draw(make_figure: Any, results: Results, file_format: str) -> bytes:
    panels = [(panel, rows) for panel in _PANELS if (rows := _rows(results, panel[0]))]
    engines = [
        engine
        for engine in _COLOURS
        if any(engine in row.samples for _, rows in panels for row in rows)
    ]
    counts = [len(rows) for _, rows in panels]
    height = _INCHES_A_ROW * sum(counts) + _INCHES_A_PANEL * len(panels) + _INCHES_AROUND
    figure = make_figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
    for (panel, rows), axis in zip(panels, axes, strict=True):
        _draw_panel(axis, results, panel, rows, engines)
    machine = results.machine
    unit = "thread" if results.threads == 1 else "threads"
    title = f"regard {machine['regard']}, float32, {results.threads} {unit}, {machine['target']}"
    figure.suptitle(f"{title}, {machine['cpu']}", color=_INK, fontsize=8.5)
    handles, labels = axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8.5
    )
    for text in legend.get_texts():
        text.set_color(_INK)
    picture = io.BytesIO()
    figure.savefig(picture, format=file_format, dpi=_DPI, transparent=True)
    return picture.getvalue()


def _rows(results: Results, yardstick: Yardstick) -> list[CaseResult]:
    groups = (FORWARD, PRODUCT) if yardstick == "peak" else (DECODE,)
    return [row for group in groups for row in results.cases if row.case.group is group]


def _draw_panel(
    axis: Any,
    results: Results,
    panel: tuple[Yardstick, str, str, int],
    rows: list[CaseResult],
    engines: list[str],
) -> None:
    yardstick, unit, name, decimals = panel
    widths = {engine: _WIDE if engine == "regard" else _NARROW for engine in engines}
    step = sum(widths.values()) + _BETWEEN
    at = 0.0
    for engine in engines:
        centre = at + widths[engine] / 2
        at += widths[engine]
        shown = [(i * step + centre, row) for i, row in enumerate(rows) if engine in row.samples]
        axis.barh(
            [y for y, _ in shown],
            [row.rate(engine) for _, row in shown],
            height=0.86 * widths[engine],
            color=_COLOURS[engine],
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
                    color=_COLOURS["regard"],
                )
    limit = results.limit(yardstick) / 1e9
    axis.axvline(limit, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axis.annotate(
        f"{name} {limit:.{decimals}f}",
        (limit, 1),
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
    axis.set_xlim(0, 1.08 * max(limit, *(row.rate(one) for row in rows for one in row.samples)))
    axis.set_xlabel(unit, fontsize=8, color=_INK)
    axis.tick_params(colors=_INK, labelsize=8, length=0)
    axis.spines[:].set_visible(False)
