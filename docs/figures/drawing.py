"""What the drawings share: an empty figure, colours, and the shapes that recur.

Coordinates are in inches from the lower left corner, so that drawings have one scale. On the site,
each colour is replaced by a property of the style sheet, which has another value in the dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

# Blue and orange differ in hue and in lightness for every kind of colour vision.
COLOURS = {
    "ink": "#1b1f24",
    "muted": "#5b6470",
    "line": "#a3acb8",
    "empty": "#f1f3f6",
    "first": "#8fc1e3",
    "second": "#f3c07c",
    "third": "#c9b3dd",
}
SIZE, SMALL = 9.5, 8.0


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Make a figure of some inches, with axes that cover it."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    """Draw a filled rectangle with its lower left corner at (x, y)."""
    face = "none" if colour == "none" else COLOURS[colour]
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=face, edgecolor=COLOURS["line"], linewidth=0.8)
    )


def label(
    axes: Axes, x: float, y: float, text: str, *, muted: bool = False, **options: Any
) -> None:
    """Write some text, in the middle of (x, y) unless the options say otherwise."""
    defaults = {"ha": "center", "va": "center", "fontsize": SMALL if muted else SIZE}
    axes.text(x, y, text, color=COLOURS["muted" if muted else "ink"], **{**defaults, **options})


def arrow(axes: Axes, start: Sequence[float], end: Sequence[float], **options: Any) -> None:
    """Draw an arrow between two points."""
    style = {"arrowstyle": "-|>,head_width=0.18,head_length=0.35", "color": COLOURS["muted"]}
    axes.annotate(
        "", end, start, arrowprops={**style, "linewidth": 1, "shrinkA": 0, "shrinkB": 0, **options}
    )


def visibility(
    axes: Axes, x: float, top: float, visible: np.ndarray, *, cell: float = 0.2
) -> float:
    """Draw which keys, across, each query, downwards, sees. Return the width."""
    for row, keys in enumerate(visible):
        for column, seen in enumerate(keys):
            colour = "first" if seen else "empty"
            box(axes, x + column * cell, top - (row + 1) * cell, cell, cell, colour)
    return visible.shape[1] * cell
