"""Weights as a shaded table, in a terminal or in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._runtime.public import public
from regard._show.tokens import AxisTokens, tokens_of_axes
from regard._show.weights import attention_weights, place_of_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from regard._show.tokens import TokensArgument

    Array = NDArray[Any]

_MOST_TABLES = 8


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
        from regard._show.shaded_text import text_of_weights

        tables = [text_of_weights(*table, self._tokens) for table in self._tables()]
        return "\n\n".join([*tables, *self._not_shown()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from regard._show.shaded_html import html_of_weights

        tables = [html_of_weights(*table, self._tokens) for table in self._tables()]
        return "\n".join([*tables, *(f"<p>{line}</p>" for line in self._not_shown())])

    def _tables(self) -> Iterator[tuple[str, Array]]:
        """Yield the title and the weights of each head that is shown."""
        if self._head is not None:
            yield _title(self._head), self._weights[self._head]
            return
        for number, place in enumerate(np.ndindex(self._weights.shape[:-2])):
            if number == _MOST_TABLES:
                return
            yield _title(place), self._weights[place]

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


def _title(place: tuple[int, ...]) -> str:
    return f"head {', '.join(map(str, place))}" if place else ""
