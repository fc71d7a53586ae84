"""The attention weights as a shaded grid, tokens along both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .layout import Table
from .stages import Array
from .terminal import Terminal, left, right, width_of

MAX_SHOWN = 24
_NAME_HEIGHT = 6
_NUMBERED_CELL = 7
_PICTURE_CELL = 2
_LEGEND = (0.02, 0.1, 0.3, 0.6, 1.0)


def shown_in_grid(token_count: int, room: int) -> int:
    """Give how many of the tokens a grid shows that may be `room` columns wide."""
    if token_count <= min(MAX_SHOWN, room // _PICTURE_CELL):
        return token_count
    return max(1, min(MAX_SHOWN, (room - 2) // _PICTURE_CELL))  # 2 for the ellipsis


def weights_grid(
    terminal: Terminal, title: str, tokens: Sequence[str], weights: Array, room: int
) -> Table:
    """Shade the weights, with their numbers where there is room.

    Parameters
    ----------
    terminal : Terminal
        Where the grid goes.
    title : str
        The name above it.
    tokens : sequence of str
        The tokens, which name the rows and the columns.
    weights : ndarray
        The causal weights, (tokens, tokens).
    room : int
        How wide the grid may be.

    Returns
    -------
    Table
        The grid.
    """
    shown = shown_in_grid(len(tokens), room)
    if len(tokens) * _NUMBERED_CELL <= room and shown == len(tokens):
        return _numbered(terminal, title, tokens, weights)
    picture = _picture(terminal, title, tokens[:shown], weights[:shown, :shown])
    if shown == len(tokens):
        return picture
    rows = [f"{row} {terminal.glyphs.ellipsis}" for row in picture.rows]
    return Table(title, picture.headers, [*rows, terminal.glyphs.ellipsis])


def legend(terminal: Terminal) -> list[str]:
    """Show which shade is which weight, a piece for each."""
    first_weights: dict[str, float] = {}
    for weight in _LEGEND:
        first_weights.setdefault(_picture_cell(terminal, weight), weight)
    return [f"{cell} {terminal.dim(f'{weight:.2f}')}" for cell, weight in first_weights.items()]


def _strength(weight: float) -> float:
    return math.sqrt(max(weight, 0.0))  # the root keeps small weights apart


def _numbered(terminal: Terminal, title: str, tokens: Sequence[str], weights: Array) -> Table:
    inner = _NUMBERED_CELL - 1
    names = (right(terminal.label(token, inner), inner) + " " for token in tokens)
    hidden = f"{terminal.glyphs.hidden:>{inner - 1}}  "
    rows = []
    for query, row in enumerate(weights.tolist()):
        visible = "".join(_numbered_cell(terminal, weight) for weight in row[: query + 1])
        rows.append(visible + terminal.dim(hidden * (len(tokens) - query - 1)))
    return Table(title, [terminal.dim("".join(names))], rows)


def _numbered_cell(terminal: Terminal, weight: float) -> str:
    if terminal.colours:
        return terminal.shade(f"  {weight:.2f} ", _strength(weight))
    return f"{terminal.ink(_strength(weight))} {weight:.2f} "


def _picture(terminal: Terminal, title: str, tokens: Sequence[str], weights: Array) -> Table:
    rows = []
    for query, row in enumerate(weights.tolist()):
        visible = "".join(_picture_cell(terminal, weight) for weight in row[: query + 1])
        rows.append(visible + " " * _PICTURE_CELL * (len(tokens) - query - 1))
    return Table(title, _upright(terminal, tokens), rows)


def _picture_cell(terminal: Terminal, weight: float) -> str:
    if terminal.colours:
        return terminal.shade(" " * _PICTURE_CELL, _strength(weight))
    return terminal.ink(_strength(weight)) * _PICTURE_CELL


def _upright(terminal: Terminal, tokens: Sequence[str]) -> list[str]:
    """Write the tokens downwards, each ending above its column."""
    names = [_letters(terminal.text(token), terminal.glyphs.ellipsis) for token in tokens]
    height = max(len(name) for name in names)
    columns = [[""] * (height - len(name)) + name for name in names]
    return [
        terminal.dim("".join(left(letter, _PICTURE_CELL) for letter in line))
        for line in zip(*columns, strict=True)
    ]


def _letters(name: str, ellipsis: str) -> list[str]:
    """Split a name into what stands below each other, marks with the letters that carry them."""
    letters: list[str] = []
    for char in name:
        if letters and width_of(char) == 0:
            letters[-1] += char
        else:
            letters.append(char)
    return letters if len(letters) <= _NAME_HEIGHT else [*letters[: _NAME_HEIGHT - 1], ellipsis]
