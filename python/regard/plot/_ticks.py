"""Ticks at queries and keys: as many as fit, with position numbers or with tokens.

Tokens are labels that a font can draw and that matplotlib does not parse as formulas.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from matplotlib import font_manager, rcParams, ticker
from matplotlib.textpath import TextPath

from regard._show.text import clip, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axis import Axis

_LINE = 1.25  # the distance from one line of text to the next, in font sizes
_MOST_UPRIGHT = 40
_WIDTHS = 16, 32, 48
_TEX = str.maketrans(
    {char: rf"\{char}" for char in "#%&_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


class _EntryLocator(ticker.Locator):
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


def _points_of(axis: Any) -> float:
    """Return the length of an axis on paper, in points."""
    box = axis.axes.bbox
    pixels = box.width if axis.axis_name == "x" else box.height
    return float(pixels) * 72 / float(axis.get_figure(root=True).dpi)


def set_ticks(axis: Axis, first: int, count: int, tokens: Sequence[str] | None) -> None:
    """Label `count` positions from `first` on with tokens or, if there are none, with numbers."""
    size = float(axis.get_ticklabels()[0].get_fontsize()) if axis.get_ticklabels() else 10.0
    is_across = getattr(axis, "axis_name", "") == "x"
    axis.set_tick_params(which="both", length=2.5, width=0.6)
    if tokens is None:
        numbers = ticker.MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        axis.set_major_locator(numbers)
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
    axis.set_major_locator(_EntryLocator(first, first + count - 1, points))

    def text_at(at: float, _: int | None) -> str:
        place = round(at) - first
        return texts[place] if 0 <= place < count else ""

    axis.set_major_formatter(ticker.FuncFormatter(text_at))


def _width(text: str, size: float) -> float:
    if not text.strip():
        return 0.0
    outline = TextPath((0, 0), text.replace(r"\$", "S"), size=size)
    return float(outline.get_extents().width)


def labels(tokens: Iterable[str]) -> list[str]:
    """Return each token as a matplotlib label: short, escaped, and in characters of the font.

    Labels are longer if some would be the same only because they are cut.
    """
    drawable = _Drawable()
    whole = []
    for token in tokens:
        text = printable(token)
        visible = text if text.strip() else "␣" * len(text)
        whole.append("".join(map(drawable, visible)))
    for width in _WIDTHS:
        short = [clip(text, width) for text in whole]
        if len(set(short)) == len(set(whole)):
            break
    if rcParams["text.usetex"]:
        short = [text.translate(_TEX) for text in short]
    return [text.replace("$", r"\$") for text in short]


class _Drawable:
    """Replaces missing characters, for which matplotlib would issue a warning at each drawing."""

    def __init__(self) -> None:
        self._fonts = [font_manager.get_font(path) for path in _font_files()]
        self._known: dict[str, str] = {}

    def __call__(self, char: str) -> str:
        if char.isascii():
            return char
        if char not in self._known:
            has_glyph = any(font.get_char_index(ord(char)) for font in self._fonts)
            escape = char.encode("unicode_escape").decode("ascii")
            self._known[char] = char if has_glyph else escape
        return self._known[char]


def _font_files() -> list[str]:
    """Return the files of the default fonts, all of which matplotlib searches for a character."""
    found = []
    for family in font_manager.FontProperties().get_family():
        properties = font_manager.FontProperties(family=[family])
        try:
            found.append(str(font_manager.findfont(properties, fallback_to_default=False)))
        except ValueError:  # not installed
            continue
    return found or [str(font_manager.findfont(font_manager.FontProperties()))]
