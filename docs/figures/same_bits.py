"""Why the number of threads changes no bit."""

from __future__ import annotations

from drawing import arrow, box, canvas, label
from matplotlib.figure import Figure

CELL, HEIGHT, ROWS, BLOCKS = 0.62, 0.22, 4, 8
THREADS = ["first", "second", "third"]


def rows(axes, x: float, top: float, owners: list[int]) -> None:
    """Draw rows of blocks in the colours of the threads that compute them."""
    for row, owner in enumerate(owners):
        for block in range(BLOCKS):
            box(
                axes,
                x + block * CELL / 2,
                top - (row + 1) * HEIGHT,
                CELL / 2,
                HEIGHT,
                THREADS[owner],
            )
        y = top - (row + 0.5) * HEIGHT
        arrow(axes, (x + 0.06, y), (x + BLOCKS * CELL / 2 - 0.06, y))
        label(axes, x + BLOCKS * CELL / 2 + 0.08, y, f"thread {owner + 1}", muted=True, ha="left")


def draw() -> Figure:
    """Draw the same rows, computed by one thread and by three."""
    figure, axes = canvas(7.4, 2.15)
    for x, title, owners in (
        (0.65, "one thread", [0] * ROWS),
        (4.05, "three threads", [0, 2, 1, 0]),
    ):
        label(axes, x + BLOCKS * CELL / 4, 1.95, title)
        rows(axes, x, 1.6, owners)
        for block, position in ((0, "0"), (1, "96"), (2, "192"), (3, "288")):
            label(axes, x + block * CELL / 2, 1.63, position, muted=True, fontsize=7, va="bottom")
        label(
            axes,
            x + BLOCKS * CELL / 2,
            1.63,
            "keys",
            muted=True,
            fontsize=7,
            va="bottom",
            ha="right",
        )
    label(axes, 0.3, 1.6 - ROWS * HEIGHT / 2, "queries", muted=True, rotation=90)
    label(
        axes,
        3.6,
        0.3,
        "Each row is summed from left to right: within a block of 96 keys, over the blocks\n"
        "of a chunk, then over chunks. Who computes it, and when, changes nothing.",
        muted=True,
    )
    return figure
