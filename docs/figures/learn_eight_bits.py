"""One lane of a product of float32, and one lane of a product of bytes."""

import style
from matplotlib.figure import Figure


def draw() -> Figure:
    """Draw the 32 bits of a lane as one float32 and as four integers."""
    figure, axes = style.canvas(16, 6.0)
    for y, pieces, name, total in (
        (0.9, 1, "float32", "1 product"),
        (3.5, 4, "int8", "4 products"),
    ):
        style.label(axes, (0.5, y + 0.9), name, align="left", bold=True)
        for i, (operand, color) in enumerate((("query", style.BLUE), ("key", style.GREEN))):
            width = 4.8 / pieces
            for piece in range(pieces):
                corner = (4.2 + piece * width, y + 0.95 * i)
                style.box(axes, corner, (width, 0.75), color=color, fill=0.4)
            style.label(axes, (4.0, y + 0.95 * i + 0.37), operand, align="right")
        style.arrow(axes, (9.3, y + 0.85), (10.6, y + 0.85))
        style.box(axes, (10.8, y + 0.45), (1.9, 0.8), "sum", color=style.PURPLE)
        style.label(axes, (13.0, y + 0.85), total, align="left")
    style.label(axes, (6.6, 0.4), "32 bits of a vector: one lane", font_size=style.SMALL)
    return figure
