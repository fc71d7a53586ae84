"""What the drawings of the documentation have in common: colors, a canvas, boxes, arrows, SVG.

The colors are middle tones, distinguishable with any color vision, and readable on light and dark
pages, so that drawings need no background. On the site, ink has the color of the page's text.
"""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#787d84"
BLUE, ORANGE, GREEN, PURPLE = "#2d7dd2", "#d9822b", "#3f9d75", "#a1699b"
FONT_SIZE, SMALL = 10.0, 8.5
_UNIT = 0.42  # inches of a canvas's unit
_LINE = 1.1

Point = tuple[float, float]


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure and its axes in units, with (0, 0) at the top left and y downwards."""
    figure = Figure(figsize=(width * _UNIT, height * _UNIT))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()
    return figure, axes


def box(
    axes: Axes,
    corner: Point,
    size: Point,
    text: str = "",
    *,
    color: str = INK,
    fill: float = 0.18,
    line: float = _LINE,
    dashed: bool = False,
    font_size: float = FONT_SIZE,
) -> None:
    """Draw a rectangle from its top left corner, with text in its middle; `fill` is an opacity."""
    style: dict[str, Any] = {"linestyle": (0, (3, 2)) if dashed else "-"}
    paint = mpl.colors.to_rgba(color, fill)
    edge = color if line else "none"
    axes.add_patch(
        mpl.patches.Rectangle(
            corner, *size, facecolor=paint, edgecolor=edge, linewidth=line, **style
        )
    )
    if text:
        middle = (corner[0] + size[0] / 2, corner[1] + size[1] / 2)
        label(axes, middle, text, font_size=font_size)


def grid(
    axes: Axes,
    corner: Point,
    rows: Sequence[Sequence[str | None]],
    *,
    cell: float = 1.0,
    fill: float = 0.35,
    line: float = 0.6,
) -> None:
    """Draw a table of cells, each in the color given, or empty where that is None."""
    for i, row in enumerate(rows):
        for j, color in enumerate(row):
            at = (corner[0] + j * cell, corner[1] + i * cell)
            opacity = 0.0 if color is None else fill
            box(axes, at, (cell, cell), color=color or INK, fill=opacity, line=line)


def label(
    axes: Axes,
    at: Point,
    text: str,
    *,
    color: str = INK,
    align: str = "center",
    font_size: float = FONT_SIZE,
    bold: bool = False,
) -> None:
    """Write text at a point, centered on it vertically."""
    weight = "bold" if bold else "normal"
    axes.text(
        *at, text, color=color, ha=align, va="center", fontsize=font_size, fontweight=weight,
        linespacing=1.25,
    )  # fmt: skip


def arrow(axes: Axes, start: Point, end: Point, *, color: str = INK, both: bool = False) -> None:
    """Draw an arrow from one point to another."""
    style = mpl.patches.ArrowStyle("<|-|>" if both else "-|>", head_length=5, head_width=2.4)
    axes.add_patch(
        mpl.patches.FancyArrowPatch(
            start, end, arrowstyle=style, color=color, linewidth=1.3, shrinkA=0, shrinkB=0
        )
    )


def svg(figure: Figure) -> str:
    """Return a figure as SVG without a background."""
    content = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "regard", "svg.fonttype": "path"}):
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    picture = content.getvalue()
    # The metadata names the version of matplotlib, and nothing that a page shows.
    picture = re.sub(r"<metadata>.*?</metadata>\s*", "", picture, flags=re.DOTALL)
    # A path on one line, instead of a line for each of its points.
    picture = re.sub(r"[ \t]*\n(?!\s*<)[ \t]*", " ", picture)
    return picture[picture.index("<svg") :]
