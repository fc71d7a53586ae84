"""A tile that moves over the matrix of scores."""

import style
from matplotlib.figure import Figure

CELL, TILES = 0.62, 7


def draw() -> Figure:
    """Draw the matrix of scores, the tile that exists, and what it reads and leaves."""
    figure, axes = style.canvas(16, 7.4)
    left, top, row, column = 5.0, 2.2, 2, 3
    style.grid(axes, (left, top), [[None] * TILES] * TILES, cell=CELL)
    done = [style.INK] * column
    style.grid(axes, (left, top + row * CELL), [done], cell=CELL, fill=0.18)
    style.grid(axes, (left, top), [[style.INK] * TILES] * row, cell=CELL, fill=0.18)
    tile = (left + column * CELL, top + row * CELL)
    style.box(axes, tile, (CELL, CELL), color=style.PURPLE, fill=0.7)
    style.box(axes, (tile[0], 0.9), (CELL, 0.9), color=style.GREEN, fill=0.5)
    style.label(axes, (tile[0] - 0.2, 1.3), "96 keys", align="right")
    style.box(axes, (3.6, tile[1]), (0.9, CELL), color=style.BLUE, fill=0.5)
    style.label(axes, (3.4, tile[1] + CELL / 2), "192 queries", align="right")
    style.arrow(axes, (tile[0] + CELL + 0.1, tile[1] + CELL / 2), (9.3, tile[1] + CELL / 2))
    names = (("m", 0.6), ("l", 0.6), ("o", 2.2))
    x = 10.0
    for name, width in names:
        style.box(axes, (x, tile[1]), (width, CELL), name, color=style.ORANGE)
        x += width + 0.15
    style.label(axes, (11.85, tile[1] - 0.5), "state of these queries")
    style.label(axes, (11.85, tile[1] + 1.3), "rescaled where m moves", font_size=style.SMALL)
    style.label(
        axes, (left + TILES * CELL / 2, top + TILES * CELL + 0.4), "scores: only the tile exists"
    )
    return figure
