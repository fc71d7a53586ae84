"""A table of names and texts in HTML, in the page's own colours."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CELL = "text-align: left; vertical-align: top; padding: 0.1em 0.75em 0.1em 0"


def html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table with a row for each name, whose cells are escaped."""
    lines = [
        '<table style="border-collapse: collapse">',
        f'<caption style="text-align: left">{html.escape(caption)}</caption>',
        "<tbody>",
    ]
    for name, text in rows:
        head = f'<th scope="row" style="{_CELL}; font-weight: normal">{html.escape(name)}</th>'
        lines.append(f'<tr>{head}<td style="{_CELL}">{html.escape(text)}</td></tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])
