"""The five products of the backward pass around one block of weights."""

import style
from matplotlib.figure import Figure


def draw() -> Figure:
    """Draw what goes into a block of weights and gradients of scores, and what comes out."""
    figure, axes = style.canvas(16.5, 7.4)
    inputs = (("Q, K, lse", 0.9, style.BLUE), ("G, V, D", 4.7, style.GREEN))
    for text, y, color in inputs:
        style.box(axes, (0.4, y), (2.6, 1.3), text, color=color)
    style.box(axes, (6.0, 0.7), (2.6, 1.7), "P", color=style.PURPLE, fill=0.4, font_size=13)
    style.box(axes, (6.0, 4.5), (2.6, 1.7), "dS", color=style.PURPLE, fill=0.4, font_size=13)
    style.arrow(axes, (3.1, 1.55), (5.9, 1.55))
    style.label(axes, (4.5, 1.0), "exp(c Q K$^T$ - lse)", font_size=style.SMALL)
    style.arrow(axes, (3.1, 5.35), (5.9, 5.35))
    style.label(axes, (4.5, 4.8), "G V$^T$ - D", font_size=style.SMALL)
    style.arrow(axes, (7.3, 2.5), (7.3, 4.4))
    style.label(axes, (7.5, 3.4), "times P", align="left", font_size=style.SMALL)
    outputs = (
        ("dV += P$^T$ G", 0.95, 1.55),
        ("dK += c dS$^T$ Q", 3.7, 5.1),
        ("dQ += c dS K", 5.6, 5.6),
    )
    for text, y, start in outputs:
        style.box(axes, (11.4, y), (4.4, 1.2), text, color=style.ORANGE)
        style.arrow(axes, (8.7, start), (11.3, y + 0.6))
    style.label(axes, (7.3, 6.9), "one block: in cache, then gone", font_size=style.SMALL)
    return figure
