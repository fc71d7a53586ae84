"""The arrays of attention in NumPy, and the stages between them."""

import style
from matplotlib.figure import Figure

TOKENS = 6


def draw() -> Figure:
    """Draw query and key, scores, weights, value and output, with their shapes."""
    figure, axes = style.canvas(17.5, 6.2)
    cell, top = 0.5, 1.6

    def array(x: float, columns: int, rows: int, color: str, name: str, shape: str) -> None:
        style.grid(axes, (x, top), [[color] * columns] * rows, cell=cell)
        style.label(axes, (x + columns * cell / 2, top - 0.5), name)
        style.label(axes, (x + columns * cell / 2, top + 3.5), shape, font_size=style.SMALL)

    array(0.4, 2, TOKENS, style.BLUE, "query", "6 x 2")
    style.label(axes, (1.85, top + 1.5), "@")
    style.grid(axes, (2.3, top + 1.0), [[style.GREEN] * TOKENS] * 2, cell=cell)
    style.label(axes, (3.8, top + 0.5), "key.T")
    style.label(axes, (3.8, top + 2.5), "2 x 6", font_size=style.SMALL)
    style.arrow(axes, (5.5, top + 1.5), (6.4, top + 1.5))
    array(6.6, TOKENS, TOKENS, style.PURPLE, "scores", "6 x 6")
    style.arrow(axes, (9.8, top + 1.5), (10.9, top + 1.5))
    style.label(axes, (10.3, top + 0.9), "exp, /", font_size=style.SMALL)
    array(11.1, TOKENS, TOKENS, style.PURPLE, "weights", "6 x 6")
    style.label(axes, (14.4, top + 1.5), "@")
    array(14.7, 2, TOKENS, style.ORANGE, "value", "6 x 2")
    style.label(axes, (15.95, top + 1.5), "=")
    array(16.2, 2, TOKENS, style.BLUE, "output", "6 x 2")
    square = "These two grow with the square of the length, and both are written to memory."
    style.label(axes, (10.35, top + 4.2), square, font_size=style.SMALL)
    return figure
