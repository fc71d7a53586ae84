"""The results as a picture: bars, and the limits of the machine."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from regard._bench.problems import Limit
from regard._bench.results import Results
from regard._runtime.public import needed

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
_SMALL = {"fontsize": 8, "color": _INK}
_WIDTH, _DPI = 7.6, 130
_LIMITS: dict[Limit, str] = {
    "fma peak": "GFLOP/s; %: regard's part of the measured fma peak, {:.0f} GFLOP/s",
    "read bandwidth": "GB/s of keys and values read; %: regard's part of the measured read "
    "bandwidth, {:.1f} GB/s",
}


def pen() -> Callable[[Draw, Results, str], bytes]:
    """Import matplotlib, and return the function that draws the content of a file."""
    figure = needed("matplotlib.figure", "--plot", "plot").Figure

    def draw(content: Draw, results: Results, file_format: str) -> bytes:
        picture = io.BytesIO()
        content(figure, results).savefig(picture, format=file_format, dpi=_DPI, transparent=True)
        return picture.getvalue()

    return draw


def draw_bars(make_figure: Any, results: Results) -> Any:
    """Draw the cases that have a limit, in a panel for each limit."""
    panels = {
        limit: rows
        for limit in _LIMITS
        if (rows := [row for row in results.cases if row.case.group.limit == limit])
    }
    counts = [len(rows) for rows in panels.values()]
    height = 0.34 * sum(counts) + 0.65 * len(panels) + 0.85
    figure = make_figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
    engines = _engines(results)
    for (limit, rows), axis in zip(panels.items(), axes, strict=True):
        # The bar of regard is twice as wide as another; the space between cases is as wide.
        height = 1 / (len(engines) + 3)
        top = 0.0
        for engine in engines:
            own = height * (1 + (engine == "regard"))
            shown = [(at, row) for at, row in enumerate(rows) if engine in row.samples]
            bars = axis.barh(
                [at + top + own / 2 for at, _ in shown],
                [row.rate(engine) for _, row in shown],
                0.86 * own,
                color=_COLORS[engine],
                label=engine,
            )
            if engine == "regard":
                shares = [f"{results.share(row):.0%}" for _, row in shown]
                axis.bar_label(bars, shares, padding=3, fontsize=7.5, color=_COLORS["regard"])
            top += own
        speed = results.limit(limit) / 1e9
        axis.axvline(speed, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        above = axis.get_xaxis_transform()
        axis.text(speed, 1.01, limit, transform=above, ha="right", **_SMALL)
        axis.set_yticks([at + top / 2 for at in range(len(rows))], [row.name for row in rows])
        axis.set_ylim(len(rows) - height, -height)
        rates = [row.rate(engine) for row in rows for engine in row.samples]
        axis.set_xlim(0, 1.08 * max([speed, *rates]))
        axis.set_xlabel(_LIMITS[limit].format(speed), **_SMALL)
        _style(axis)
    return _finished(figure, axes[0], results)


def _engines(results: Results) -> list[str]:
    return [name for name in _COLORS if any(name in row.samples for row in results.cases)]


def _style(axis: Any) -> None:
    axis.tick_params(which="both", colors=_INK, labelsize=8, length=0)
    axis.spines[:].set_visible(False)


def _finished(figure: Any, axis: Any, results: Results) -> Any:
    """Add the title and the legend, and return the figure."""
    machine = results.machine
    unit = "thread" if results.threads == 1 else "threads"
    title = f"{machine['cpu']}, {machine['target']}, float32, {results.threads} {unit}"
    figure.suptitle(f"{title}, {results.date[:10]}", color=_INK, fontsize=8.5)
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=8.5,
        labelcolor=_INK,
    )
    return figure
