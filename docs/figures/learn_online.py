"""The state of an online softmax as three keys arrive."""

import style
from matplotlib.figure import Figure

# Weight and value of a key, and the state after it: e^m, l, o.
KEYS = ((2, 7, "2", "1", "7"), (8, 1, "8", "1.25", "2.75"), (4, 3, "8", "1.75", "4.25"))


def draw() -> Figure:
    """Draw three keys, and below each the state that it leaves."""
    figure, axes = style.canvas(16, 6.2)
    for i, (weight, value, largest, total, output) in enumerate(KEYS):
        x = 1.0 + 5.0 * i
        key = rf"$e^s = {weight}$, value {value}"
        style.box(axes, (x, 0.4), (4.0, 1.0), key, color=style.GREEN)
        style.arrow(axes, (x + 2, 1.45), (x + 2, 2.55))
        rows = (rf"$e^m$ = {largest}", f"l = {total}", f"o = {output}")
        for j, text in enumerate(rows):
            style.box(axes, (x, 2.6 + 0.8 * j), (4.0, 0.8), text, color=style.BLUE)
        if i < 2:
            style.arrow(axes, (x + 4.05, 3.8), (x + 4.95, 3.8), color=style.ORANGE)
    style.label(axes, (5.4, 5.45), "m moves:\nl and o x 2/8", color=style.ORANGE)
    style.label(axes, (10.1, 5.45), "m stays:\nl and o x 1", color=style.ORANGE)
    style.label(axes, (13.4, 5.45), "output\n4.25 / 1.75", bold=True)
    return figure
