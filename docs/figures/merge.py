"""Attention over two halves of the keys, merged by their log-sum-exps."""

import style
from matplotlib.figure import Figure

KEYS = 7


def draw() -> Figure:
    """Draw the keys, the two partial results, and what becomes of them."""
    figure, axes = style.canvas(17, 6.8)
    for half, color in enumerate((style.BLUE, style.ORANGE)):
        x = 1.5 + 7.5 * half
        middle = x + KEYS * 0.9 / 2
        style.label(axes, (middle, 0.5), f"keys and values, part {half + 1}")
        style.grid(axes, (x, 1.0), [[color] * KEYS], cell=0.9)
        style.arrow(axes, (middle, 2.05), (middle, 2.75))
        style.box(axes, (middle - 2.2, 2.9), (2.8, 0.9), f"output {half + 1}", color=color)
        style.box(axes, (middle + 0.6, 2.9), (1.6, 0.9), f"lse {half + 1}", fill=0)
        style.arrow(axes, (middle, 3.95), (middle + 1.2 - 2.4 * half, 4.95))
    first, second = (rf"e^{{\mathrm{{lse}}_{part} - \mathrm{{lse}}}}" for part in (1, 2))
    merged = rf"output $= {first} \cdot$ output 1 $+\ {second} \cdot$ output 2"
    style.label(axes, (8.5, 5.4), merged, font_size=11)
    total = r"\log(e^{\mathrm{lse}_1} + e^{\mathrm{lse}_2})"
    style.label(axes, (8.5, 6.3), rf"lse $= {total}$, so the two factors sum to 1")
    return figure
