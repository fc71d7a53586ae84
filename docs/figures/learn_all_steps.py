"""All steps of the tutorial: what share of the peak each step reached where the page was built."""

from collections.abc import Sequence
from typing import Any

import style
from matplotlib.figure import Figure

HEIGHT, NAMES, FULL = 0.62, 7.2, 7.2


def draw(rows: Sequence[tuple[str, dict[str, Any] | None]]) -> Figure:
    """Draw a bar for each row: its share of the peak of the cores that it uses."""
    figure, axes = style.canvas(NAMES + FULL + 2.6, HEIGHT * len(rows) + 1.6)
    bottom = HEIGHT * len(rows) + 0.5
    for share in (0.25, 0.5, 0.75, 1.0):
        x = NAMES + FULL * share
        axes.plot([x, x], [0.3, bottom], color=style.INK, linewidth=0.6, alpha=0.35)
        style.label(axes, (x, bottom + 0.35), f"{share:.0%}", font_size=style.SMALL)
    style.label(axes, (NAMES - 0.3, bottom + 0.35), "share of the peak", align="right")
    first = next((record["speed"] for _, record in rows if record), None)
    for i, (name, record) in enumerate(rows):
        y = 0.4 + HEIGHT * i
        middle = y + 0.4 * HEIGHT
        style.label(axes, (NAMES - 0.3, middle), name, align="right")
        if record is None:
            style.label(axes, (NAMES + 0.1, middle), "no compiler", align="left")
            continue
        color = style.ORANGE if record["cores"] > 1 else style.BLUE
        width = FULL * record["share"]
        style.box(axes, (NAMES, y), (width, 0.8 * HEIGHT), color=color, fill=0.75, line=0)
        cores = f", {record['cores']} cores" if record["cores"] > 1 else ""
        text = f"{record['speed'] / first:.1f}x{cores}"
        style.label(axes, (NAMES + width + 0.15, middle), text, align="left", font_size=style.SMALL)
    return figure
