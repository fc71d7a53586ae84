"""Two orders of the same tiles: strip after strip, or block after block."""

import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STRIPS, BLOCKS, CELL = 4, 5, 1.0


def order(axes: Axes, left: float, title: str, by_block: bool) -> None:
    """Draw tiles with the order in which they are computed."""
    top = 1.9
    style.label(axes, (left + BLOCKS * CELL / 2, 0.5), title, bold=True)
    style.label(axes, (left + BLOCKS * CELL / 2, 1.35), "blocks of keys", font_size=style.SMALL)
    for strip in range(STRIPS):
        at = (left - 0.3, top + (strip + 0.5) * CELL)
        style.label(axes, at, f"strip {strip}", align="right", font_size=style.SMALL)
        for block in range(BLOCKS):
            number = block * STRIPS + strip if by_block else strip * BLOCKS + block
            # A block is read from far away when it was not the last one that was used.
            is_far = strip == 0 or not by_block
            color = style.ORANGE if is_far else style.BLUE
            corner = (left + block * CELL, top + strip * CELL)
            text = str(number + 1)
            style.box(axes, corner, (CELL, CELL), text, color=color, fill=0.3, font_size=9)


def draw() -> Figure:
    """Draw both orders side by side."""
    figure, axes = style.canvas(17, 6.8)
    order(axes, 2.4, "strip after strip", by_block=False)
    order(axes, 10.6, "keys outside, strips inside", by_block=True)
    legend = "orange: read from far away; blue: already near"
    style.label(axes, (8.5, 6.4), legend, font_size=style.SMALL)
    return figure
