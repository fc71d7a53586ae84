"""Strips of a causal call: their intervals, their diagonals, and who goes first."""

import style
from matplotlib.figure import Figure

STRIPS, CELL = 6, 0.72


def draw() -> Figure:
    """Draw strips that end where their last query does, with the order in which they begin."""
    figure, axes = style.canvas(16, 6.4)
    left, top, width = 2.2, 0.9, 1.15
    for i in range(STRIPS):
        y = top + i * CELL
        style.box(axes, (left, y), (STRIPS * width, CELL), fill=0, line=0.5)
        if i:
            style.box(axes, (left, y), (i * width, CELL), color=style.BLUE, fill=0.4)
        style.box(axes, (left + i * width, y), (width, CELL), color=style.ORANGE, fill=0.25)
        corner = left + i * width
        axes.fill(
            [corner, corner, corner + width], [y, y + CELL, y + CELL], color=style.ORANGE, alpha=0.6
        )
        style.label(axes, (left - 0.3, y + CELL / 2), f"{STRIPS - i}.", align="right")
    style.label(axes, (1.0, 5.7), "order of\nbeginning", font_size=style.SMALL)
    style.label(axes, (left + STRIPS * width / 2, 5.7), "keys")
    right = left + STRIPS * width + 0.5
    style.label(axes, (right, 2.0), "interval known before\na key is read", align="left")
    style.label(
        axes, (right, 3.6), "compared only at\nthe diagonal", align="left", color=style.ORANGE
    )
    return figure
