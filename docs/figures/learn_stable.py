"""The scores that exp can take in float32, before and after their largest is subtracted."""

import style
from matplotlib.figure import Figure

LOWEST, HIGHEST = -103.0, 88.7
SCORES = (20.0, 60.0, 95.0, 130.0)


def draw() -> Figure:
    """Draw two number lines with the same scores, the second shifted by the largest."""
    figure, axes = style.canvas(16, 5.3)

    def place(score: float) -> float:
        return 1.0 + 14.0 * (score + 125) / 270

    for y, shift, name in ((1.3, 0.0, "scores"), (3.9, 130.0, "scores - largest")):
        style.arrow(axes, (0.8, y), (15.4, y))
        start, end = place(LOWEST), place(HIGHEST)
        style.box(axes, (start, y - 0.22), (end - start, 0.44), color=style.GREEN, fill=0.25)
        style.label(axes, (0.8, y - 0.85), name, align="left")
        for score in SCORES:
            overflows = score - shift > HIGHEST
            color = style.ORANGE if overflows else style.BLUE
            axes.plot([place(score - shift)], [y], marker="o", color=color, markersize=8)
            if overflows:
                style.label(axes, (place(score - shift), y - 0.6), "inf", color=color)
    style.label(axes, (place(-103), 1.95), "-103: exp is 0", font_size=style.SMALL)
    style.label(axes, (place(88.7), 1.95), "88.7: exp is inf", font_size=style.SMALL)
    style.arrow(axes, (place(130), 2.3), (place(0) + 0.15, 3.65), color=style.BLUE)
    below = "The largest score is at 0, where exp is 1. What is too small becomes 0, as it should."
    style.label(axes, (8, 4.9), below, font_size=style.SMALL)
    return figure
