"""Ticks at queries and keys: as many as fit, with tokens or position numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib import ticker
from matplotlib.textpath import TextPath

from regard.plot._labels import labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axis import Axis

# In font sizes: the distance from one line of text to the next, and from one number to the next.
_LINE, _LINE_OF_NUMBERS = 1.25, 2.0
_MOST_UPRIGHT = 40


class EntryLocator(ticker.Locator):
    """Ticks at whole positions from `first` to `last`, spaced so that labels do not touch."""

    def __init__(self, first: int, last: int, points: float) -> None:
        self._first, self._last, self._points = first, last, points

    def __call__(self) -> list[float]:
        """Return the ticks of the axis in its current state."""
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positions."""
        low, high = sorted((vmin, vmax))
        first, last = max(math.ceil(low), self._first), min(math.floor(high), self._last)
        shown = (high - low) * self._points / max(_points_of(self.axis), 1.0)
        step = max(1, math.ceil(shown))
        ticks = range(first + (self._first - first) % step, last + 1, step)
        return [float(at) for at in ticks] or [float(at) for at in range(first, last + 1)][:1]


class NumberLocator(EntryLocator):
    """Ticks at round numbers, spaced so that labels do not touch."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks between two positions."""
        ticks = super().tick_values(vmin, vmax)
        if len(ticks) < 2 or ticks[1] - ticks[0] == 1:
            return ticks
        step = _round_up(int(ticks[1] - ticks[0]))
        low, high = sorted((vmin, vmax))
        first = max(math.ceil(low), self._first)
        last = min(math.floor(high), self._last)
        return [float(at) for at in range(-(-first // step) * step, last + 1, step)]


def _round_up(step: int) -> int:
    """Return the next number of the series 2, 5, 10, 20, 50, ..."""
    power: int = 10 ** (len(str(step)) - 1)
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step)


def _points_of(axis: Any) -> float:
    """Return the length of an axis on paper, in points."""
    box = axis.axes.bbox
    pixels = box.width if axis.axis_name == "x" else box.height
    return float(pixels) * 72 / float(axis.get_figure(root=True).dpi)


def set_ticks(axis: Axis, first: int, count: int, tokens: Sequence[str] | None) -> None:
    """Label `count` positions from `first` on with tokens or, if there are none, with numbers."""
    size = float(axis.get_ticklabels()[0].get_fontsize()) if axis.get_ticklabels() else 10.0
    last = first + count - 1
    is_across = getattr(axis, "axis_name", "") == "x"
    axis.set_tick_params(which="both", length=2.5, width=0.6)
    if tokens is None:
        widest = max((str(first), str(last)), key=len)
        points = _width(widest, size) + size if is_across else _LINE_OF_NUMBERS * size
        axis.set_major_locator(NumberLocator(first, last, points))
        axis.set_major_formatter(ticker.FuncFormatter(lambda at, _: f"{round(at)}"))
        return
    texts = labels(tokens)
    points = _LINE * size
    if is_across:
        upright = _points_of(axis) * 0.8 / count if count <= _MOST_UPRIGHT else 0.0
        widest_points = max((_width(text, size) for text in texts), default=0) if upright else 0.0
        if widest_points + 0.5 * size < upright:
            points = widest_points + 0.5 * size
        else:
            axis.set_tick_params(labelrotation=90)
    axis.set_major_locator(EntryLocator(first, last, points))

    def text_at(at: float, _: int | None) -> str:
        place = round(at) - first
        return texts[place] if 0 <= place < count else ""

    axis.set_major_formatter(ticker.FuncFormatter(text_at))


def _width(text: str, size: float) -> float:
    if not text.strip():
        return 0.0
    outline = TextPath((0, 0), text.replace(r"\$", "S"), size=size)
    return float(outline.get_extents().width)
