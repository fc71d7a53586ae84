"""Pages of a cache: shared by forks, and reused once a window has moved past them."""

import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SIZE = (2.0, 0.85)


def page(axes: Axes, x: float, y: float, text: str, color: str, **options: bool) -> None:
    """Draw a page with what it holds."""
    style.box(axes, (x, y), SIZE, text, color=color, font_size=style.SMALL, **options)


def draw_forks(axes: Axes) -> None:
    """Draw a prompt that two texts share."""
    style.label(axes, (0.2, 0.45), "two forks of a prompt", align="left")
    for number in range(3):
        page(axes, 4 + number * SIZE[0], 1.6, f"prompt {number + 1}", style.BLUE)
    for y, name, color in ((1.0, "text A", style.ORANGE), (2.2, "text B", style.PURPLE)):
        middle = y + SIZE[1] / 2
        style.label(axes, (0.2, middle), name, align="left")
        style.arrow(axes, (1.8, middle), (3.85, 2.02))
        style.arrow(axes, (10.15, 2.02), (12.3, middle))
        page(axes, 12.45, y, "its own", color)


def draw_window(axes: Axes) -> None:
    """Draw the pages of a text whose middle has been forgotten."""
    top, step = 5.5, SIZE[0] + 0.12
    style.label(axes, (0.2, 4.4), "a window, with sink tokens", align="left")
    page(axes, 0.2, top, "sink", style.ORANGE)
    for number in (1, 2):
        page(axes, 0.2 + number * step, top, "free", style.INK, dashed=True)
    for number in range(3, 7):
        page(axes, 0.2 + number * step, top, f"page {number + 5}", style.BLUE)
    left, right = 0.2 + 3 * step, 0.2 + 6 * step + SIZE[0]
    bracket = [top - 0.15, top - 0.32, top - 0.32, top - 0.15]
    axes.plot([left, left, right, right], bracket, color=style.INK, linewidth=1)
    style.label(axes, ((left + right) / 2, top - 0.75), "what queries see", font_size=style.SMALL)
    bottom, below = top + SIZE[1] + 0.1, top + SIZE[1] + 0.6
    last, free = right - SIZE[0] / 2, 0.2 + step + SIZE[0] / 2
    axes.plot([last, last, free], [bottom, below, below], color=style.INK, linewidth=1.3)
    style.arrow(axes, (free, below), (free, bottom))
    text = "new tokens go to pages that have left the window"
    style.label(axes, ((last + free) / 2, below + 0.45), text, font_size=style.SMALL)


def draw() -> Figure:
    """Draw forks above, and a window below."""
    figure, axes = style.canvas(15.5, 7.7)
    draw_forks(axes)
    draw_window(axes)
    return figure
