"""2^x: the integer part of x becomes an exponent, the fraction a polynomial."""

import style
from matplotlib.figure import Figure


def draw() -> Figure:
    """Draw x, its two parts, and the float32 that they become."""
    figure, axes = style.canvas(17, 6.6)
    style.box(axes, (6.6, 0.4), (3.8, 1.0), "x = 5.3 = 5 + 0.3")
    style.arrow(axes, (7.4, 1.4), (4.6, 2.4), color=style.BLUE)
    style.arrow(axes, (9.6, 1.4), (12.0, 2.4), color=style.ORANGE)
    style.label(axes, (3.6, 2.9), "n = 5: an integer")
    style.label(axes, (12.9, 2.9), "f = 0.3: a polynomial gives 2^f = 1.231")
    style.arrow(axes, (3.9, 3.3), (5.2, 4.3), color=style.BLUE)
    style.arrow(axes, (12.0, 3.3), (11.0, 4.3), color=style.ORANGE)
    y, height = 4.4, 1.0
    style.box(axes, (2.4, y), (0.9, height), "0")
    style.box(axes, (3.3, y), (3.7, height), "5 + 127", color=style.BLUE, fill=0.3)
    style.box(
        axes,
        (7.0, y),
        (8.2, height),
        "the bits of 1.231 after the point",
        color=style.ORANGE,
        fill=0.3,
    )
    for x, name in ((2.85, "sign"), (5.15, "8 bits of exponent"), (11.1, "23 bits of mantissa")):
        style.label(axes, (x, y + height + 0.45), name, font_size=style.SMALL)
    return figure
