"""The weights of one head as an HTML table, without scripts, for light and dark pages."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from regard._show.text import clip, printable
from regard._show.weight_table import ink_of, no_weights, number_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._show.tokens import AxisTokens

_MOST = 32
_LABEL_WIDTH = 24
# A medium blue over the background of the page, transparent enough to keep the text readable.
_COLOR, _THICKEST = "64, 128, 208", 0.6
_CELL = "text-align: right; padding: 0.15em 0.5em; font-variant-numeric: tabular-nums"
_LABEL = "font-weight: normal; padding: 0.15em 0.5em"


def html_of_weights(title: str, weights: NDArray[Any], tokens: AxisTokens) -> str:
    """Return a table with a caption and with headers for screen readers.

    Without weights, return a line of text.
    """
    q_len, kv_len = weights.shape
    if not weights.size:
        lines = [title, no_weights(q_len, kv_len)] if title else [no_weights(q_len, kv_len)]
        return f"<p>{'<br>'.join(map(html.escape, lines))}</p>"
    shown = weights[:_MOST, :_MOST].tolist()
    queries, keys = (
        [str(i) for i in range(min(size, _MOST))] if texts is None else texts[:_MOST]
        for size, texts in zip((q_len, kv_len), tokens, strict=True)
    )
    more_keys, more_queries = kv_len > _MOST, q_len > _MOST
    ellipsis = f'<td style="{_CELL}">…</td>' if more_keys else ""
    header = "".join(_label(key, "col") for key in keys)
    caption = html.escape(_caption(title, q_len, kv_len))
    lines = [
        '<table style="border-collapse: collapse; margin: 0.5em 0">',
        f'<caption style="text-align: left">{caption}</caption>',
        f"<thead><tr><td></td>{header}{ellipsis}</tr></thead>",
        "<tbody>",
    ]
    for query, row in zip(queries, shown, strict=True):
        cells = "".join(map(_cell, row))
        lines.append(f"<tr>{_label(query, 'row')}{cells}{ellipsis}</tr>")
    if more_queries:
        lines.append(f'<tr><td style="{_CELL}">…</td></tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])


def _caption(title: str, q_len: int, kv_len: int) -> str:
    name = f"Attention weights, {title}" if title else "Attention weights"
    if max(q_len, kv_len) > _MOST:
        return f"{name}: the first of {q_len:,} queries (rows) and {kv_len:,} keys (columns)"
    return f"{name}: queries are rows, keys are columns"


def _label(token: str, scope: str) -> str:
    text = printable(token)
    full = f' title="{html.escape(clip(text, 200))}"' if clip(text, _LABEL_WIDTH) != text else ""
    align = "right" if scope == "col" else "left"
    style = f"{_LABEL}; text-align: {align}"
    label = html.escape(clip(text, _LABEL_WIDTH))
    return f'<th scope="{scope}" style="{style}"{full}><bdi>{label}</bdi></th>'


def _cell(weight: float) -> str:
    ink = ink_of(weight)
    shade = f"; background-color: rgba({_COLOR}, {_THICKEST * ink:.2f})" if ink else ""
    return f'<td style="{_CELL}{shade}">{number_of(weight)}</td>'
