"""The largest score so far, and a reference that moves only when a score exceeds it by 8."""

import numpy as np
import style
from matplotlib.figure import Figure

SCORES = (-2.0, 0.5, -1.0, 2.0, 3.5, 1.0, 4.5, 2.5, 5.0, 8.5, 4.0, 7.0, 6.0, 9.0, 5.5, 7.5)
THRESHOLD = 8.0


def draw() -> Figure:
    """Draw scores as they arrive, the largest so far, and the reference."""
    figure, axes = style.canvas(19, 7.4)
    unit, step, left = 0.42, 0.85, 2.0

    def y(score: float) -> float:
        return 5.4 - unit * score

    largest = np.maximum.accumulate(SCORES)
    reference = [SCORES[0]]
    for score in SCORES[1:]:
        reference.append(score if score > reference[-1] + THRESHOLD else reference[-1])
    for i, score in enumerate(SCORES):
        axes.plot(left + step * (i + 0.5), y(score), "o", color=style.PURPLE, markersize=4.5)
    edges = left + step * np.arange(len(SCORES) + 1)
    for name, values, color in (
        ("largest score", largest, style.ORANGE),
        ("reference", reference, style.BLUE),
    ):
        heights = [y(value) for value in values]
        axes.stairs(heights, edges, baseline=None, color=color, linewidth=1.6)
        offset = -0.3 if color == style.ORANGE else 0.3
        at = (left + step * len(SCORES) + 0.2, heights[-1] + offset)
        style.label(axes, at, name, color=color, align="left", font_size=9)
    style.arrow(axes, (left, 6.9), (left + step * len(SCORES), 6.9))
    middle = left + step * len(SCORES) / 2
    style.label(axes, (middle, 7.2), "keys, as they arrive", font_size=style.SMALL)
    style.label(axes, (1.7, y(3.5)), "scores", align="right", color=style.PURPLE)
    return figure
