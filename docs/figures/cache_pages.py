"""Pages of a cache: shared by forks, and used again behind a window."""

from __future__ import annotations

from drawing import arrow, box, canvas, label
from matplotlib.figure import Figure

WIDTH, HEIGHT = 0.82, 0.34


def page(axes, x: float, y: float, text: str, colour: str) -> None:
    """Draw a page with what it holds."""
    box(axes, x, y, WIDTH, HEIGHT, colour)
    label(axes, x + WIDTH / 2, y + HEIGHT / 2, text, fontsize=8)


def draw() -> Figure:
    """Draw forks above, and a window below."""
    figure, axes = canvas(7.6, 3.2)
    label(axes, 0.1, 2.98, "two forks of a prompt", ha="left")
    for number in range(3):
        page(axes, 1.5 + number * WIDTH, 2.35, f"prompt {number + 1}", "first")
    for y, name, colour in ((2.62, "text A", "second"), (2.08, "text B", "third")):
        label(axes, 0.1, y + HEIGHT / 2, name, ha="left", muted=True)
        page(axes, 1.9 + 3 * WIDTH + 0.45, y, "its own", colour)
        arrow(axes, (0.65, y + HEIGHT / 2), (1.45, 2.35 + HEIGHT / 2))
        arrow(
            axes, (1.55 + 3 * WIDTH, 2.35 + HEIGHT / 2), (1.85 + 3 * WIDTH + 0.45, y + HEIGHT / 2)
        )
    label(axes, 0.1, 1.5, "a window, with sink tokens", ha="left")
    y = 0.72
    contents = [("sink", "second"), ("free", "empty"), ("free", "empty")]
    contents += [(f"{8 + n}", "first") for n in range(3)] + [("11", "first")]
    for number, (text, colour) in enumerate(contents):
        page(axes, 0.6 + number * WIDTH * 1.06, y, text, colour)
    left, right = 0.6 + 3 * WIDTH * 1.06, 0.6 + 6 * WIDTH * 1.06 + WIDTH
    axes.plot(
        [left, left, right, right],
        [y + 0.42, y + 0.48, y + 0.48, y + 0.42],
        color="#5b6470",
        linewidth=1,
    )
    label(axes, (left + right) / 2, y + 0.6, "window: the last pages of the text", muted=True)
    arrow(
        axes,
        (right - WIDTH / 2, y - 0.05),
        (0.6 + WIDTH * 1.06 + WIDTH / 2, y - 0.05),
        connectionstyle="arc3,rad=-0.12",
    )
    label(
        axes,
        0.6 + 3.6 * WIDTH,
        0.12,
        "new tokens go to pages that have left the window",
        muted=True,
    )
    return figure
