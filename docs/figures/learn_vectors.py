"""One fused multiply-add: a number of a key times a vector of queries, added to scores."""

import style
from matplotlib.figure import Figure

LANES, CELL = 8, 0.95


def draw() -> Figure:
    """Draw the three vectors of an FMA, a query in each lane."""
    figure, axes = style.canvas(19, 6.4)
    left = 5.4
    rows = (
        (1.0, "broadcast: key[d]", style.ORANGE, lambda lane: "k"),
        (2.6, "queries[d]", style.BLUE, lambda lane: f"q{lane}"),
        (4.6, "scores", style.PURPLE, lambda lane: f"s{lane}"),
    )
    for y, name, color, text in rows:
        style.label(axes, (left - 0.4, y + CELL / 2), name, align="right")
        for lane in range(LANES):
            corner = (left + lane * CELL, y)
            style.box(axes, corner, (CELL, CELL), text(lane), color=color, fill=0.3)
    for lane in range(LANES):
        x = left + (lane + 0.5) * CELL
        style.label(axes, (x, 0.55), f"lane {lane}", font_size=7)
        style.label(axes, (x, 2.28), "×")
        style.arrow(axes, (x, 2.6 + CELL), (x, 4.55))
    right = left + LANES * CELL + 0.3
    style.label(axes, (right, 4.6 + CELL / 2), "+=, one instruction", align="left")
    return figure
