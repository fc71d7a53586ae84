"""How often the stages move an array of the size of the scores."""

import style
from matplotlib.figure import Figure

# The arrays that each stage reads and writes, in arrays of length x length.
STAGES = (
    ("query @ key.T", 0, 1),
    ("scores * factor", 1, 1),
    ("exp(scores)", 1, 1),
    ("weights.sum()", 1, 0),
    ("weights / sums", 1, 1),
    ("weights @ value", 1, 0),
)


def draw() -> Figure:
    """Draw memory and the core, and a square for each time that all scores pass between them."""
    figure, axes = style.canvas(16, 6.6)
    style.box(axes, (0.3, 0.4), (3.3, 5.8), "memory,\nor the cache\nthat is large\nenough")
    style.box(axes, (12.4, 0.4), (3.3, 5.8), "core")
    for i, (name, reads, writes) in enumerate(STAGES):
        y = 0.9 + 0.95 * i
        style.label(axes, (8, y), name, font_size=style.SMALL)
        if reads:
            style.box(axes, (4.1, y - 0.3), (0.6, 0.6), color=style.BLUE, fill=0.5)
            style.arrow(axes, (4.9, y), (6.2, y), color=style.BLUE)
        if writes:
            style.arrow(axes, (11.1, y), (9.8, y), color=style.ORANGE)
            style.box(axes, (11.3, y - 0.3), (0.6, 0.6), color=style.ORANGE, fill=0.5)
    return figure
