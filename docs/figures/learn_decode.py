"""How often a key that was read is used: by many queries, and by one."""

import style
from matplotlib.figure import Figure

COLUMNS = 22


def draw() -> Figure:
    """Draw the scores of many queries and of one, over the same keys."""
    figure, axes = style.canvas(17, 6.2)
    cell = 0.3
    for y, rows, name in ((1.0, 8, "many queries"), (5.0, 1, "one query")):
        style.grid(axes, (5.2, y), [[style.GREEN] * COLUMNS], cell=cell, fill=0.5)
        style.label(axes, (4.9, y + 0.15), "keys from memory", align="right", font_size=style.SMALL)
        style.grid(axes, (5.2, y + 0.45), [[style.PURPLE] * COLUMNS] * rows, cell=cell)
        style.label(axes, (4.9, y + 0.45 + rows * cell / 2), name, align="right")
    style.label(
        axes, (12.2, 2.6), "each key is used\nby every query:\narithmetic limits", align="left"
    )
    style.label(axes, (12.2, 5.4), "each key is used once:\nmemory limits", align="left")
    return figure
