"""Attention over two halves of the keys, merged by their log-sum-exps."""

from __future__ import annotations

from drawing import arrow, box, canvas, label
from matplotlib.figure import Figure


def draw() -> Figure:
    """Draw the keys, the two partial results, and what becomes of them."""
    figure, axes = canvas(7.2, 2.75)
    cell, top = 0.36, 2.05
    for half, colour in enumerate(("first", "second")):
        start = 0.75 + half * 3.0
        for key in range(7):
            box(axes, start + key * cell, top, cell, 0.3, colour)
        middle = start + 3.5 * cell
        label(axes, middle, top + 0.47, f"keys and values, part {half + 1}")
        arrow(axes, (middle, top - 0.05), (middle, top - 0.33))
        box(axes, middle - 0.85, top - 0.72, 1.1, 0.34, colour)
        label(axes, middle - 0.3, top - 0.55, f"output {half + 1}")
        box(axes, middle + 0.25, top - 0.72, 0.6, 0.34, "empty")
        label(axes, middle + 0.55, top - 0.55, f"lse {half + 1}")
        arrow(axes, (middle, top - 0.77), (middle + (0.35 - 0.7 * half) * 1.6, top - 1.25))
    first, second = (rf"e^{{\mathrm{{lse}}_{part} - \mathrm{{lse}}}}" for part in (1, 2))
    label(axes, 3.6, 0.62, rf"output $= {first} \cdot$ output 1 $+\ {second} \cdot$ output 2")
    total = r"\log(e^{\mathrm{lse}_1} + e^{\mathrm{lse}_2})"
    label(axes, 3.6, 0.25, rf"lse $= {total}$, so the two factors sum to 1", muted=True)
    return figure
