"""Strips of queries, taken by two threads in whatever order."""

import style
from matplotlib.figure import Figure

FIRST = (0, 1, 0, 0, 1, 0, 1, 1)
SECOND = (1, 0, 0, 1, 1, 0, 1, 0)


def draw() -> Figure:
    """Draw two runs in which different threads compute the strips."""
    figure, axes = style.canvas(16, 6.4)
    for x, owners, name in ((1.4, FIRST, "one run"), (8.9, SECOND, "another run")):
        style.label(axes, (x + 2.8, 0.5), name)
        for i, owner in enumerate(owners):
            color = style.ORANGE if owner else style.BLUE
            y = 1.0 + 0.56 * i
            style.box(axes, (x, y), (5.6, 0.5), color=color, fill=0.45)
            style.arrow(axes, (x + 0.3, y + 0.25), (x + 5.3, y + 0.25))
    style.label(axes, (0.7, 3.2), "strips")
    style.label(
        axes, (8, 6.0), "Keys come in the same order in every strip, whichever thread has it."
    )
    return figure
