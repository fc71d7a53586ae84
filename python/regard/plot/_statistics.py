"""Panels of the statistics that `regard.summarize_attention` returns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.colors import Normalize

from regard._arguments.keywords import refuses_unknown
from regard._arguments.numbers import listed
from regard._show.labels import HeadNames, strings, tokens_of_axes
from regard._show.weights import edges, reduced
from regard._statistics.result import OF_HEADS, AttentionSummary, leading_axes
from regard.plot._axes import OF_WEIGHTS, add_scale, figure_of, of_level
from regard.plot._layer_heads import draw_layer_heads
from regard.plot._ticks import set_ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase

    from regard._arguments.arrays import Array
    from regard._show.labels import TokensArgument


# The title of each panel, in drawing order.
_OF_QUERIES = {
    "entropy": "entropy (nats)",
    "effective_count": "effective number of keys",
    "max": "largest weight",
    "mean_distance": "mean distance (tokens)",
    "first_mass": "weight on the first keys",
    "local_mass": "weight on nearby keys",
    "top_k": "weight on the top keys",
}
_OF_KEYS = {
    "column_sums": "weight that a key gets, summed over queries",
    "column_means": "weight that a key gets, mean of the queries that see it",
}
_TITLES_OF_HEADS = {
    "previous_token": "previous-token score",
    "induction": "induction score",
}
_FIELDS = _OF_QUERIES | _OF_KEYS | _TITLES_OF_HEADS
_MOST_POSITIONS = 1024  # the width of a panel in screen pixels
_WIDTH, _HEIGHT = 4.6, 1.9  # of a panel, in inches
_LINE = of_level(200)
_OF_PACKED = (
    "from summarize_attention_ragged, where heads come last, pass "
    "AttentionSummary(entropy=summary.entropy[start:end].T) for a sequence"
)


@refuses_unknown
def statistics(
    summary: AttentionSummary,
    tokens: TokensArgument = None,
    *,
    fields: Iterable[str] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    figure: FigureBase | None = None,
    cmap: Any = None,
) -> dict[str, Axes]:
    """Draw a panel for each statistic of attention weights.

    A statistic of queries or keys is a line if there is one head, and otherwise a strip for each
    head, whose color is the number. A statistic of heads is a bar for each head, or, if there are
    layers too, a picture in which layers go down and heads go right, as by `layer_heads`.

    Parameters
    ----------
    summary : AttentionSummary
        The result of `regard.summarize_attention`, with any batch axes. The axes before heads are
        layers. Fields that are None are omitted. The result of `regard.summarize_attention_ragged`
        has heads last: for one of its sequences, pass
        ``AttentionSummary(entropy=summary.entropy[start:end].T)``, with other fields likewise.
    tokens : sequence of str or a pair of them, optional
        As for `attention`.
    fields : iterable of str, optional
        The fields to draw. Default: all fields of the summary.
    names : mapping, optional
        ``{"layers": [...], "heads": [...]}``, or one of the two: a str for each layer, and for each
        head of a layer. By default, layers and heads are numbered, and head 3 of layer 5 is
        ``"5.3"``.
    figure : matplotlib.figure.Figure, optional
        An empty figure, or a part of one, to draw on. Default: a new figure.
    cmap : str or matplotlib.colors.Colormap, optional
        The colors of strips and of pictures of layers and heads. Default: the colors of weights,
        which are darker for larger numbers.

    Returns
    -------
    dict of str to matplotlib.axes.Axes
        The panels, by field name.

    Raises
    ------
    TypeError
        If `summary` is not an AttentionSummary, or `fields` is not an iterable of str.
    ValueError
        If a field is unknown or None, if there is no field to draw, if the leading axes of the
        fields differ, or if the number of tokens or names does not match.

    See Also
    --------
    layer_heads : draws any number of each head.

    Notes
    -----
    A strip or a line has at most 1024 points: if there are more positions, a point is the mean of a
    block.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> x = np.random.default_rng(0).standard_normal((4, 100, 8))
    >>> summary = regard.summarize_attention(x, x, is_causal=True, statistics=("entropy", "max"))
    >>> sorted(regard.plot.statistics(summary, figure=Figure()))
    ['entropy', 'max']
    """
    shown = _numbers(summary, fields)
    rows = _Rows.of(summary, names)
    of_queries, of_keys = _tokens(tokens, shown)
    heads = rows.layers * rows.heads
    across = 1 if len(shown) == 1 else 2
    down = -(-len(shown) // across)
    tall = _HEIGHT + min(max(heads - 12, 0) * 0.06, 2.0)
    size = max(5.0, across * _WIDTH), down * tall + 0.3
    with figure_of(figure, size, "constrained") as drawing:
        panels = drawing.subplots(down, across, squeeze=False).reshape(-1)
        for ax, (name, numbers) in zip(panels, shown.items(), strict=False):
            ax.set_title(_FIELDS[name], fontsize="medium", loc="left")
            if name in OF_HEADS:
                _draw_heads(ax, numbers, rows, cmap)
                continue
            is_of_keys = name in _OF_KEYS
            texts = of_keys if is_of_keys else of_queries
            _positions(ax, numbers, rows, "key" if is_of_keys else "query", texts, cmap)
        for ax in panels[len(shown) :]:
            ax.remove()
    return dict(zip(shown, panels, strict=False))


class _Rows(NamedTuple):
    """The rows of strips: the heads of all layers, with their labels, None if numbered from 0."""

    layers: int
    heads: int
    layer_names: list[str] | None
    head_names: list[str] | None
    labels: list[str] | None
    has_layers: bool

    @classmethod
    def of(cls, summary: AttentionSummary, names: Mapping[str, Sequence[str]] | None) -> _Rows:
        """Read the leading axes (..., heads) of a summary, or raise TypeError or ValueError."""
        *batch, heads = leading_axes(summary, _OF_PACKED) or (1,)
        layers = math.prod(batch)
        of_layers, of_heads = HeadNames.of(names, layers, heads)
        if not batch:
            return cls(layers, heads, None, of_heads, of_heads, False)
        numbers = [".".join(map(str, place)) for place in np.ndindex(*batch)]
        labels = [
            f"{layer}.{head}"
            for layer in of_layers or numbers
            for head in of_heads or map(str, range(heads))
        ]
        if of_layers is None and len(batch) > 1:
            of_layers = numbers
        return cls(layers, heads, of_layers, of_heads, labels, True)


def _numbers(summary: AttentionSummary, fields: Iterable[str] | None) -> dict[str, Array]:
    """Return the arrays to draw, each of shape (heads, ...)."""
    if not isinstance(summary, AttentionSummary):
        raise TypeError(
            f"summary must be a result of regard.summarize_attention, got {type(summary).__name__}"
        )
    if fields is None:
        chosen = [name for name in _FIELDS if getattr(summary, name) is not None]
    else:
        chosen = [fields] if isinstance(fields, str) else strings("fields", fields)
    for name in chosen:
        if name not in _FIELDS:
            raise ValueError(f"fields must be of {listed(_FIELDS)}, got {name!r}")
        if getattr(summary, name) is None:
            raise ValueError(f"fields contains {name!r}, which the summary does not have")
    if not chosen:
        raise ValueError("summary has no field to draw")
    found = {}
    for name in chosen:
        field = getattr(summary, name)
        array = np.asarray(field.weights.sum(axis=-1) if name == "top_k" else field)
        if not array.size:
            raise ValueError(f"summary has nothing to draw: {name} has shape {array.shape}")
        axes = 0 if name in OF_HEADS else 1
        found[name] = array.reshape(-1, *array.shape[array.ndim - axes :])
    return found


def _tokens(
    tokens: TokensArgument, shown: dict[str, Array]
) -> tuple[list[str] | None, list[str] | None]:
    """Return the texts of queries and keys; a summary may contain only one of the two."""
    lengths = [
        next((shown[name].shape[1] for name in names if name in shown), None)
        for names in (_OF_QUERIES, _OF_KEYS)
    ]
    known = [length for length in lengths if length is not None]
    if not known:
        return None, None
    q_len, kv_len = (known[0] if length is None else length for length in lengths)
    return tokens_of_axes(tokens, q_len, kv_len)


def _draw_heads(ax: Axes, numbers: Array, rows: _Rows, cmap: Any) -> None:
    if rows.has_layers:
        names = HeadNames(rows.layer_names, rows.head_names)
        pixels = numbers.reshape(rows.layers, rows.heads)
        add_scale(draw_layer_heads(ax, pixels, names, {"cmap": cmap, "aspect": "auto"}), ax, "")
        return
    ax.bar(np.arange(len(numbers)), numbers, width=0.8, color=_LINE)
    ax.set_xlim(-0.6, len(numbers) - 0.4)
    ax.set_ylim(bottom=0)
    set_ticks(ax.xaxis, 0, len(numbers), rows.head_names)
    ax.set_xlabel("head")
    _quiet(ax)


def _positions(
    ax: Axes, numbers: Array, rows: _Rows, axis: str, tokens: list[str] | None, cmap: Any
) -> None:
    heads, length = numbers.shape
    of_pixels = edges(length, -(-length // -(-length // _MOST_POSITIONS)))
    means = reduced(numbers, of_pixels, 1, "mean") / np.diff(of_pixels)
    if heads == 1:
        places = (np.arange(means.shape[1]) + 0.5) * length / means.shape[1] - 0.5
        ax.plot(places, means[0], color=_LINE, linewidth=1.2, marker="." if length == 1 else None)
        ax.set_xlim(-0.5, length - 0.5)
        ax.set_ylim(bottom=0)
        _quiet(ax)
    else:
        finite = means[np.isfinite(means)]
        high = float(finite.max()) if finite.size else 1.0
        image = ax.imshow(
            means,
            norm=Normalize(0.0, high or 1.0),
            cmap=OF_WEIGHTS if cmap is None else cmap,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, length - 0.5, heads - 0.5, -0.5),
        )
        set_ticks(ax.yaxis, 0, heads, rows.labels)
        ax.set_ylabel("layer.head" if rows.has_layers else "head")
        add_scale(image, ax, "")
    set_ticks(ax.xaxis, 0, length, tokens)
    block = -(-length // means.shape[1])
    ax.set_xlabel(axis if block == 1 else f"{axis} (means of {block:,} each)")


def _quiet(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
