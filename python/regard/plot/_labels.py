"""Tokens as labels that a font can draw and that matplotlib does not parse as formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib import font_manager, rcParams

from regard._show.text import clip, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTHS = 16, 32, 48
_TEX = str.maketrans(
    {char: rf"\{char}" for char in "#%&_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def labels(tokens: Iterable[str]) -> list[str]:
    """Return each token as a matplotlib label: short, escaped, and in characters of the font.

    Labels are longer if some would be the same only because they are cut.
    """
    drawable = _Drawable()
    whole = ["".join(map(drawable, _visible(token))) for token in tokens]
    for width in _WIDTHS:
        short = [clip(text, width) for text in whole]
        if len(set(short)) == len(set(whole)):
            break
    return [_escaped(text) for text in short]


def _visible(token: str) -> str:
    """Return a token without control characters, and make a blank token visible."""
    text = printable(token)
    return text if text.strip() else "␣" * len(text)


def _escaped(text: str) -> str:
    if rcParams["text.usetex"]:
        text = text.translate(_TEX)
    return text.replace("$", r"\$")


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
