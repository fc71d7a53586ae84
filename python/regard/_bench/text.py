"""Aligned tables and wrapped notes in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

INDENT = GAP = "  "
_WIDTH = 80


@dataclass(frozen=True)
class Column:
    """A header and its cells. Names are aligned to the left, numbers to the right."""

    header: str
    cells: Sequence[str]
    is_name: bool = False


def table_of(columns: list[Column], titles: Mapping[int, str] | None = None) -> Iterator[str]:
    """Yield the lines of a table. `titles` are lines before rows, by the number of the row."""
    widths = [max(map(len, (column.header, *column.cells))) for column in columns]

    def line(cells: Iterable[str]) -> str:
        pieces = [
            cell.ljust(width) if column.is_name else cell.rjust(width)
            for column, width, cell in zip(columns, widths, cells, strict=True)
        ]
        return (INDENT + GAP.join(pieces)).rstrip()

    yield line(column.header for column in columns)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if titles and number in titles:
            yield titles[number]
        yield line(cells)


def wrapped(text: str) -> list[str]:
    """Return the indented lines of a paragraph."""
    return textwrap.wrap(text, _WIDTH, initial_indent=INDENT, subsequent_indent=INDENT * 2)


def after_blank(lines: Iterable[str]) -> Iterator[str]:
    """Yield an empty line before the lines, if there are any."""
    for number, line in enumerate(lines):
        if number == 0:
            yield ""
        yield line
