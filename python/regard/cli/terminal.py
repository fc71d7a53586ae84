"""What the output can show: its width, its colours, its characters."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

MAX_COLUMNS = 100
MIN_COLUMNS = 32
DEFAULT_COLUMNS = 80

_COLOUR_TERMS = ("xterm", "screen", "tmux", "rxvt", "alacritty", "foot", "kitty", "wezterm")
_SGR = re.compile("\x1b\\[[0-9;]*m")


@dataclass(frozen=True)
class Glyphs:
    """The characters beyond letters and digits that the output uses."""

    times: str
    root: str
    infinity: str
    hidden: str
    ellipsis: str
    bar: str
    shades: str


UNICODE = Glyphs("×", "√", "-∞", "·", "…", "━", "░▒▓█")
ASCII = Glyphs("x", "sqrt ", "-inf", ".", "~", "=", ".:+#@")

# One hue from grey to blue at a middle lightness, so that it reads on light and on dark: what grows
# with the weight is how colourful a cell is.
_RGB = (
    (135, 141, 148),
    (122, 137, 156),
    (108, 132, 164),
    (94, 128, 172),
    (79, 122, 180),
    (64, 117, 187),
    (45, 111, 194),
    (20, 104, 200),
    (0, 97, 207),
)
_OF_256 = (244, 67, 25, 26)
_ACCENT_RGB = (45, 125, 210)
_ACCENT_OF_256 = 32


@dataclass(frozen=True)
class Terminal:
    """A text stream and what it can show."""

    stream: TextIO
    columns: int = DEFAULT_COLUMNS
    colours: int = 0
    glyphs: Glyphs = UNICODE

    @classmethod
    def of(cls, stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> Terminal:
        """Find out what a stream can show.

        Parameters
        ----------
        stream : text stream or None
            Where the output goes; None, as with a closed stdout, is nowhere.
        environ : mapping, optional
            The environment.

        Returns
        -------
        Terminal
            The stream with its width, colours and characters.
        """
        if stream is None:
            stream = io.StringIO()
        glyphs = UNICODE if all(_encodable(g, stream) for g in vars(UNICODE).values()) else ASCII
        return cls(stream, _columns(stream, environ), _colours(stream, environ), glyphs)

    def write(self, *lines: str) -> None:
        """Write lines, and hand them over before anything else is computed."""
        self.stream.write("".join(f"{line.rstrip()}\n" for line in lines))
        self.stream.flush()

    def text(self, raw: str) -> str:
        """Give text that the stream can take and that moves no cursor."""
        shown = printable(raw)
        if _encodable(shown, self.stream):
            return shown
        encoding = self.stream.encoding
        return shown.encode(encoding, "backslashreplace").decode(encoding)

    def label(self, raw: str, width: int) -> str:
        """Give text cut to at most `width` columns."""
        return clip(self.text(raw), width, self.glyphs.ellipsis)

    def bold(self, text: str) -> str:
        """Make text stand out."""
        return self._styled(text, "1")

    def dim(self, text: str) -> str:
        """Make text step back."""
        return self._styled(text, "2")

    def accent(self, text: str) -> str:
        """Show text in the hue of the shades."""
        red, green, blue = _ACCENT_RGB
        rich = self.colours > 256
        return self._styled(
            text, f"38;2;{red};{green};{blue}" if rich else f"38;5;{_ACCENT_OF_256}"
        )

    def shade(self, text: str, strength: float) -> str:
        """Paint the ground of a cell; without colours the text stays as it is.

        Parameters
        ----------
        text : str
            The cell.
        strength : float
            From 0, palest, to 1.

        Returns
        -------
        str
            The painted cell.
        """
        if self.colours > 256:
            red, green, blue = _RGB[step(strength, len(_RGB))]
            return self._styled(text, f"38;2;255;255;255;48;2;{red};{green};{blue}")
        return self._styled(text, f"38;5;231;48;5;{_OF_256[step(strength, len(_OF_256))]}")

    def ink(self, strength: float) -> str:
        """Give the character with as much ink as a strength from 0 to 1 asks for."""
        return self.glyphs.shades[step(strength, len(self.glyphs.shades))]

    def _styled(self, text: str, codes: str) -> str:
        return f"\x1b[{codes}m{text}\x1b[0m" if self.colours and text else text


def step(strength: float, steps: int) -> int:
    """Give in which of `steps` equal parts of 0 to 1 a strength lies; NaN lies in the first."""
    return min(int(strength * steps), steps - 1) if strength > 0 else 0


def printable(raw: str) -> str:
    """Replace what is not to reach a terminal raw.

    Parameters
    ----------
    raw : str
        Any text, even with escape sequences or undecodable bytes.

    Returns
    -------
    str
        The text with control characters, surrogates and the like as backslash escapes; marks that
        only steer the formatting, such as a change of direction, are left out.
    """
    seen = "".join(_seen(char) for char in raw if unicodedata.category(char) != "Cf")
    return seen or raw.encode("unicode_escape").decode("ascii")


def _seen(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def width_of(text: str) -> int:
    """Give how many columns text takes, styles apart."""
    return sum(_char_width(char) for char in _SGR.sub("", text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, width: int, ellipsis: str) -> str:
    """Cut unstyled text to at most `width` columns, with an ellipsis where something is missing."""
    if width_of(text) <= width:
        return text
    kept, used = "", width_of(ellipsis)
    for char in text:
        used += _char_width(char)
        if used > width:
            break
        kept += char
    return kept + ellipsis


def left(text: str, width: int) -> str:
    """Pad text on its right."""
    return text + " " * (width - width_of(text))


def right(text: str, width: int) -> str:
    """Pad text on its left."""
    return " " * (width - width_of(text)) + text


def _encodable(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _columns(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = 0
    if environ.get("COLUMNS", "").isdecimal():
        columns = int(environ["COLUMNS"])
    if columns == 0 and stream.isatty():
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
    return max(MIN_COLUMNS, min(columns or DEFAULT_COLUMNS, MAX_COLUMNS))


def _colours(stream: TextIO, environ: Mapping[str, str]) -> int:
    term = environ.get("TERM", "")
    if not stream.isatty() or environ.get("NO_COLOR") or term in ("", "dumb"):
        return 0
    if environ.get("COLORTERM") in ("truecolor", "24bit"):
        return 1 << 24
    return 256 if "256color" in term or term.startswith(_COLOUR_TERMS) else 0
