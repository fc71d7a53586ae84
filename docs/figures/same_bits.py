"""Why the number of threads changes no bit."""

import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CELL, BLOCKS = 0.75, 8
THREADS = [style.BLUE, style.ORANGE, style.PURPLE]
CASES = [("one thread", [0, 0, 0, 0]), ("three threads", [0, 2, 1, 0])]


def draw_rows(axes: Axes, x: float, top: float, owners: list[int]) -> None:
    """Draw rows of blocks in the colors of the threads that compute them."""
    style.grid(axes, (x, top), [[THREADS[owner]] * BLOCKS for owner in owners], cell=CELL)
    for row, owner in enumerate(owners):
        y = top + (row + 0.5) * CELL
        style.arrow(axes, (x + 0.15, y), (x + BLOCKS * CELL - 0.15, y))
        end = (x + BLOCKS * CELL + 0.2, y)
        style.label(axes, end, f"thread {owner + 1}", align="left", font_size=style.SMALL)


def draw() -> Figure:
    """Draw the same rows, computed by one thread and by three."""
    figure, axes = style.canvas(18.5, 6.1)
    for x, (title, owners) in zip((1.2, 10.2), CASES, strict=True):
        style.label(axes, (x + BLOCKS * CELL / 2, 0.4), title)
        draw_rows(axes, x, 1.5, owners)
        for block in range(4):
            at = (x + block * CELL, 1.2)
            style.label(axes, at, str(96 * block), align="left", font_size=7.5)
        style.label(axes, (x + BLOCKS * CELL, 1.2), "keys", align="right", font_size=7.5)
    style.label(axes, (0.7, 1.5 + 2 * CELL), "queries", font_size=style.SMALL)
    axes.texts[-1].set_rotation(90)
    text = (
        "Each row is summed from left to right: within a block of 96 keys, over the blocks\n"
        "of a chunk, then over chunks. Who computes it, and when, changes nothing."
    )
    style.label(axes, (9.25, 5.4), text, font_size=style.SMALL)
    return figure
