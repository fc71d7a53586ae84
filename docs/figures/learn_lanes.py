"""Softmax over a tile whose lanes are queries."""

import style
from matplotlib.figure import Figure

LANES, KEYS = 8, 4


def draw() -> Figure:
    """Draw a tile of scores, the state of each lane, and the direction of every operation."""
    figure, axes = style.canvas(16, 7.2)
    left, top, cell = 5.2, 1.6, 0.68
    style.grid(axes, (left, top), [[style.PURPLE] * LANES] * KEYS, cell=cell)
    for lane in range(LANES):
        x = left + (lane + 0.5) * cell
        style.label(axes, (x, top - 0.35), f"q{lane}", font_size=style.SMALL)
        style.arrow(axes, (x, top + 0.15), (x, top + KEYS * cell + 0.65), color=style.ORANGE)
    for key in range(KEYS):
        style.label(axes, (left - 0.3, top + (key + 0.5) * cell), f"key {key}", align="right")
    below = top + KEYS * cell + 0.75
    for i, name in enumerate(("m: reference", "l: sum")):
        y = below + i * cell
        style.grid(axes, (left, y), [[style.BLUE] * LANES], cell=cell)
        style.label(axes, (left - 0.3, y + cell / 2), name, align="right")
    right = left + LANES * cell + 0.4
    style.label(
        axes,
        (right, 2.9),
        "maxima, differences,\npowers and sums go\ndown the lanes,",
        align="left",
    )
    style.label(axes, (right, 4.5), "never across them", align="left", bold=True)
    style.label(
        axes, (left + LANES * cell / 2, below + 2 * cell + 0.5), "one vector: a query in each lane"
    )
    return figure
