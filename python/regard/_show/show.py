"""Weights as a shaded table: text in a terminal, HTML for light and dark pages in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._runtime.public import public
from regard._show.labels import AxisTokens, tokens_of_axes
from regard._show.text import (
    WEIGHT_WIDTH,
    clip,
    header_of,
    ink_of,
    labels_of,
    left,
    no_weights,
    number_of,
    printable,
    shade_rows,
    weight_rows,
    width_of,
)
from regard._show.weights import attention_weights, place_of_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._show.labels import TokensArgument


_MOST_TABLES = 8
# Lines have at most 80 columns.
_MOST_NUMBERS, _MOST_SHADES = 9, 34
_MOST_CELLS, _LABEL_WIDTH = 32, 24
# A medium blue over the background of the page, transparent enough to keep the text readable.
_COLOR, _THICKEST = "64, 128, 208", 0.6
_CELL = "text-align: right; padding: 0.15em 0.5em; font-variant-numeric: tabular-nums"
_LABEL = "font-weight: normal; padding: 0.15em 0.5em"


@public
class ShownWeights:
    """Attention weights as a table: text when printed, HTML in a notebook.

    `regard.show` returns it.
    """

    def __init__(self, weights: Array, tokens: AxisTokens, head: tuple[int, ...] | None) -> None:
        self._weights, self._tokens, self._head = weights, tokens, head

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_tokens": tuple(self._tokens)}  # pickles name public modules only

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _tokens=AxisTokens(*state["_tokens"]))

    def __str__(self) -> str:
        return "\n\n".join([*self._tables(_text_of), *self._not_shown()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "\n".join(
            [*self._tables(_html_of), *(f"<p>{line}</p>" for line in self._not_shown())]
        )

    def _tables(self, write: Callable[[str, Array, AxisTokens], str]) -> Iterator[str]:
        """Yield the table of each head that is shown."""
        heads = list(np.ndindex(self._weights.shape[:-2]))[:_MOST_TABLES]
        for place in heads if self._head is None else [self._head]:
            title = f"head {', '.join(map(str, place))}" if place else ""
            yield write(title, self._weights[place], self._tokens)

    def _not_shown(self) -> Iterator[str]:
        heads = int(np.prod(self._weights.shape[:-2], dtype=np.int64))
        if not heads:
            yield "no weights: 0 heads"
        if self._head is None and heads > _MOST_TABLES:
            yield f"… and {heads - _MOST_TABLES} more heads: pass head= to show one"


@public
def show(
    weights: ArrayLike,
    tokens: TokensArgument = None,
    *,
    head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
) -> ShownWeights:
    """Show attention weights as a shaded table: text in a terminal, HTML in a notebook.

    Parameters
    ----------
    weights : array_like of float, shape (..., q_len, kv_len)
        Weights, as returned by `scaled_dot_product_attention` with ``return_weights=True``.
    tokens : sequence of str or a pair of them, optional
        The texts of keys and queries; or a pair (query tokens, key tokens), in which None means
        position numbers.
    head : int or tuple of int, optional
        The head to show, as an index of the leading axes. Default: a separate table for each head,
        up to 8.

    Returns
    -------
    ShownWeights
        ``print`` shows it as text, and a notebook shows it as HTML. If there are many queries or
        keys, only the first are shown.

    Raises
    ------
    TypeError
        If `weights` is not an array of real numbers, or `tokens` has the wrong type.
    ValueError
        If weights are negative or a row adds up to more than 1, if the number of tokens does not
        match, or if the head does not exist.

    See Also
    --------
    summarize_attention : computes statistics of many weights.

    Notes
    -----
    A dot is a weight of exactly 0, such as the weight of a hidden key. Shades darken with the
    square root of the weight.

    Examples
    --------
    >>> import regard
    >>> weights = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.05, 0.15, 0.8]]
    >>> regard.show(weights, ["the", "cat", "sat"])
            the    cat    sat
    the  █ 1.00      ·      ·
    cat  ▒ 0.25 █ 0.75      ·
    sat  ░ 0.05 ░ 0.15 █ 0.80
    """
    array = attention_weights(weights)
    texts = tokens_of_axes(tokens, array.shape[-2], array.shape[-1])
    place = None if head is None else place_of_head(head, array.shape[:-2])
    return ShownWeights(array, texts, place)


def _texts(weights: Array, tokens: AxisTokens, most: int) -> tuple[list[str], list[str]]:
    """Return the texts of the first queries and keys, which are numbers without tokens."""
    queries, keys = (
        [str(i) for i in range(min(size, most))] if texts is None else texts[:most]
        for size, texts in zip(weights.shape, tokens, strict=True)
    )
    return queries, keys


def _text_of(title: str, weights: Array, tokens: AxisTokens) -> str:
    """Write the first weights as numbers and, if there are more, a larger part as shades."""
    q_len, kv_len = weights.shape
    lines = [title] if title else []
    if not weights.size:
        return "\n".join([*lines, no_weights(q_len, kv_len)])
    queries, keys = _texts(weights, tokens, _MOST_SHADES)
    labels = labels_of(queries, _MOST_SHADES)
    margin = max(map(width_of, labels))
    lines.append(left("", margin) + "  " + header_of(keys, WEIGHT_WIDTH, _MOST_NUMBERS))
    # The row after the numbers is an ellipsis.
    of_numbers = [*labels[:_MOST_NUMBERS], "…"]
    lines += _labeled(of_numbers, weight_rows(weights, _MOST_NUMBERS), margin)
    if max(weights.shape) > _MOST_NUMBERS:
        shown = ", the first are shown in numbers and all in shades."
        if max(weights.shape) > _MOST_SHADES:
            shown = ", the first are shown."
        lines += ["", *_labeled(labels, shade_rows(weights, _MOST_SHADES), margin)]
        lines += ["", f"Of {q_len:,} queries and {kv_len:,} keys{shown}"]
    return "\n".join(lines)


def _labeled(labels: list[str], rows: list[str], margin: int) -> list[str]:
    return [
        f"{left(label, margin)}  {row}".rstrip() for label, row in zip(labels, rows, strict=False)
    ]


def _html_of(title: str, weights: Array, tokens: AxisTokens) -> str:
    """Return a table with a caption and with headers for screen readers."""
    q_len, kv_len = weights.shape
    if not weights.size:
        lines = [title, no_weights(q_len, kv_len)] if title else [no_weights(q_len, kv_len)]
        return f"<p>{'<br>'.join(map(html.escape, lines))}</p>"
    queries, keys = _texts(weights, tokens, _MOST_CELLS)
    name = f"Attention weights, {title}" if title else "Attention weights"
    caption = f"{name}: queries are rows, keys are columns"
    if max(q_len, kv_len) > _MOST_CELLS:
        caption = f"{name}: the first of {q_len:,} queries (rows) and {kv_len:,} keys (columns)"
    ellipsis = f'<td style="{_CELL}">…</td>' if kv_len > _MOST_CELLS else ""
    header = "".join(_header(key, "col") for key in keys)
    lines = [
        '<table style="border-collapse: collapse; margin: 0.5em 0">',
        f'<caption style="text-align: left">{html.escape(caption)}</caption>',
        f"<thead><tr><td></td>{header}{ellipsis}</tr></thead>",
        "<tbody>",
    ]
    for query, row in zip(queries, weights[:_MOST_CELLS, :_MOST_CELLS].tolist(), strict=True):
        lines.append(f"<tr>{_header(query, 'row')}{''.join(map(_cell, row))}{ellipsis}</tr>")
    if q_len > _MOST_CELLS:
        lines.append(f'<tr><td style="{_CELL}">…</td></tr>')
    return "\n".join([*lines, "</tbody>", "</table>"])


def _header(token: str, scope: str) -> str:
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
