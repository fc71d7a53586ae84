"""The tile of accumulators that stays in registers during a product."""

import style
from matplotlib.figure import Figure

ROWS, VECTORS, LANES = 8, 3, 4


def draw() -> Figure:
    """Draw 8 x 3 accumulators, the broadcast keys on their left, the query vectors above."""
    figure, axes = style.canvas(17, 7.1)
    left, top, cell, gap = 4.6, 2.2, 0.5, 0.35
    for v in range(VECTORS):
        x = left + v * (LANES * cell + gap)
        style.grid(axes, (x, 0.9), [[style.BLUE] * LANES], cell=cell, fill=0.5)
        for r in range(ROWS):
            style.grid(axes, (x, top + r * 0.58), [[style.PURPLE] * LANES], cell=cell)
    for r in range(ROWS):
        style.box(axes, (2.8, top + r * 0.58), (cell, cell), color=style.GREEN, fill=0.5)
        y = top + r * 0.58 + cell / 2
        style.arrow(axes, (3.4, y), (4.4, y), color=style.GREEN)
    right = left + VECTORS * (LANES * cell + gap)
    style.label(
        axes, (right + 0.1, 1.15), "3 loads: a dimension\nof 3 vectors of queries", align="left"
    )
    style.label(axes, (2.6, 4.3), "8 broadcasts:\nthat dimension\nof 8 keys", align="right")
    style.label(
        axes, (right + 0.1, 4.3), "24 multiply-adds;\nthe sums stay\nin registers", align="left"
    )
    return figure
