"""The loops of the shipped kernel, and the location of each loop's data."""

import style
from matplotlib.figure import Figure

# For every level: what is there, what the loop of that level does, color.
LEVELS = (
    ("memory", "keys and values of a head", "a task: up to 384 queries at head_dim 64", style.INK),
    ("L2", "a block of 96 keys and values; all strips", "a strip: 48 queries", style.GREEN),
    ("L1", "the weights of a block, the queries of a strip", "a tile: 8 keys", style.BLUE),
    ("registers", "8 x 48 scores, then 8 x 48 outputs", "a dimension, a key", style.PURPLE),
)


def draw() -> Figure:
    """Draw the levels of memory as boxes in one another, narrower inwards."""
    figure, axes = style.canvas(17, 7.6)
    for i, (level, content, loop, color) in enumerate(LEVELS):
        x, y, height = 0.4 + 0.55 * i, 0.3 + 1.75 * i, 1.45
        style.box(axes, (x, y), (16.2 - 1.1 * i, height), color=color, fill=0.14)
        style.label(axes, (x + 0.3, y + height / 2), level, align="left", bold=True)
        style.label(axes, (x + 3.0, y + 0.48), content, align="left")
        inner = f"for each: {loop}"
        style.label(axes, (x + 3.0, y + 1.02), inner, align="left", font_size=style.SMALL)
        if i < 3:
            style.arrow(axes, (8.5, y + height), (8.5, y + height + 0.3), both=True)
    return figure
