"""A score as plain loops compute it: a chain of additions, each waiting for the last."""

import style
from matplotlib.figure import Figure


def draw() -> Figure:
    """Draw the chain of one score, and what a vector could do in the same time."""
    figure, axes = style.canvas(16, 6.2)
    style.label(axes, (0.4, 0.6), "one score", align="left")
    for i in range(5):
        x = 0.6 + 2.9 * i
        text = f"+ q[{i}] k[{i}]" if i < 4 else "..."
        style.box(axes, (x, 1.1), (2.1, 0.9), text, color=style.ORANGE)
        if i < 4:
            style.arrow(axes, (x + 2.15, 1.55), (x + 2.85, 1.55), color=style.ORANGE)
    waits = "about four cycles from one addition to the next; the adders stand idle in between"
    style.label(axes, (0.6, 2.5), waits, align="left", font_size=style.SMALL)
    style.label(axes, (0.4, 3.5), "what the core could begin meanwhile", align="left")
    for i in range(4):
        for j in range(2):
            style.grid(
                axes, (0.6 + 2.9 * i, 4.0 + 0.65 * j), [[style.BLUE] * 8], cell=0.3, fill=0.45
            )
    each = "two vectors of multiply-adds in every cycle, 4 to 16 numbers in each"
    style.label(axes, (0.6, 5.6), each, align="left", font_size=style.SMALL)
    return figure
