"""Panels of the statistics that `regard.summarize_attention` returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from matplotlib.colors import Normalize

from regard._arguments.keywords import refuse_keywords, takes_unknown
from regard._arguments.numbers import listed
from regard._show.tokens import tokens_of_axes
from regard._statistics.request import AttentionSummary
from regard.plot._axes import add_scale, figure_of
from regard.plot._colors import OF_WEIGHTS, of_level
from regard.plot._ticks import set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase
    from numpy.typing import NDArray

    from regard._show.tokens import TokensArgument

    Array = NDArray[Any]

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
_OF_HEADS = {
    "previous_token": "previous-token score",
    "induction": "induction score",
}
_FIELDS = _OF_QUERIES | _OF_KEYS | _OF_HEADS
_MOST_POSITIONS = 1024  # the width of a panel in screen pixels
_WIDTH, _HEIGHT = 4.6, 1.9  # of a panel, in inches
_LINE = of_level(200)


@takes_unknown
def statistics(
    summary: AttentionSummary,
    tokens: TokensArgument = None,
    *,
    fields: Iterable[str] | None = None,
    figure: FigureBase | None = None,
    cmap: Any = None,
    **unknown: Never,
) -> dict[str, Axes]:
    """Draw a panel for each statistic of attention weights.

    A statistic of queries or keys is a line if there is one head, and otherwise a strip for each
    head, whose color is the number. A statistic of heads is a bar for each head.

    Parameters
    ----------
    summary : AttentionSummary
        The result of `regard.summarize_attention`, with any batch axes. Fields that are None are
        omitted. The result of `regard.summarize_attention_ragged` has heads last: for one of its
        sequences, pass ``AttentionSummary(entropy=summary.entropy[start:end].T)``, with other
        fields likewise.
    tokens : sequence of str or a pair of them, optional
        As for `attention`.
    fields : iterable of str, optional
        The fields to draw. Default: all fields of the summary.
    figure : matplotlib.figure.Figure, optional
        An empty figure, or a part of one, to draw on. Default: a new figure.
    cmap : str or matplotlib.colors.Colormap, optional
        The colors of strips. Default: those of weights, which are darker where numbers are larger.

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
        fields differ, or if the number of tokens does not match.

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
    if unknown:
        refuse_keywords("regard.plot.statistics", unknown)
    shown = _numbers(summary, fields)
    of_queries, of_keys = _tokens(tokens, shown)
    heads = next(iter(shown.values())).shape[0]
    across = 1 if len(shown) == 1 else 2
    down = -(-len(shown) // across)
    tall = _HEIGHT + min(max(heads - 12, 0) * 0.06, 2.0)
    size = max(5.0, across * _WIDTH), down * tall + 0.3
    with figure_of(figure, size, "constrained") as drawing:
        panels = drawing.subplots(down, across, squeeze=False).reshape(-1)
        for ax, (name, numbers) in zip(panels, shown.items(), strict=False):
            ax.set_title(_FIELDS[name], fontsize="medium", loc="left")
            if name in _OF_HEADS:
                _bars(ax, numbers)
                continue
            is_of_keys = name in _OF_KEYS
            texts = of_keys if is_of_keys else of_queries
            _positions(ax, numbers, "key" if is_of_keys else "query", texts, cmap)
        for ax in panels[len(shown) :]:
            ax.remove()
    return dict(zip(shown, panels, strict=False))


def _numbers(summary: AttentionSummary, fields: Iterable[str] | None) -> dict[str, Array]:
    """Return the arrays to draw, each of shape (heads, ...)."""
    if not isinstance(summary, AttentionSummary):
        raise TypeError(
            "summary must be what regard.summarize_attention returned, got "
            f"{type(summary).__name__}"
        )
    _check_leading_axes(summary)
    names = None if fields is None else _names(fields)
    for name in names or ():
        if name not in _FIELDS:
            raise ValueError(f"fields must be of {listed(_FIELDS)}, got {name!r}")
        if getattr(summary, name) is None:
            raise ValueError(f"fields has {name!r}, which the summary does not have")
    chosen = [
        name for name in (_FIELDS if names is None else names) if getattr(summary, name) is not None
    ]
    if not chosen:
        raise ValueError("summary has no field to draw")
    found = {}
    for name in chosen:
        field = getattr(summary, name)
        array = np.asarray(field.weights.sum(axis=-1) if name == "top_k" else field)
        if not array.size:
            raise ValueError(f"summary has nothing to draw: {name} has shape {array.shape}")
        axes = 0 if name in _OF_HEADS else 1
        found[name] = array.reshape(-1, *array.shape[array.ndim - axes :])
    return found


def _names(fields: Iterable[str]) -> list[str]:
    if isinstance(fields, str):
        return [fields]
    if not isinstance(fields, Iterable):
        raise TypeError(f"fields must be an iterable of str, got {type(fields).__name__}")
    names = list(fields)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"fields must be an iterable of str, got a {type(name).__name__} in it")
    return names


def _check_leading_axes(summary: AttentionSummary) -> None:
    """Raise ValueError if the axes (..., heads) of two fields differ, as in a ragged summary."""
    shapes = {
        name: np.shape(field.weights)[:-1] if name == "top_k" else np.shape(field)
        for name, field in summary._asdict().items()
        if field is not None
    }
    leads = {name: shape if name in _OF_HEADS else shape[:-1] for name, shape in shapes.items()}
    for name, lead in leads.items():
        first = next(iter(leads))
        if lead != leads[first]:
            raise ValueError(
                f"summary must have the same axes (..., heads) in all fields, got {first} of shape "
                f"{shapes[first]} and {name} of shape {shapes[name]}: from "
                "summarize_attention_ragged, where heads come last, pass "
                "AttentionSummary(entropy=summary.entropy[start:end].T) for a sequence"
            )


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


def _bars(ax: Axes, numbers: Array) -> None:
    ax.bar(np.arange(len(numbers)), numbers, width=0.8, color=_LINE)
    ax.set_xlim(-0.6, len(numbers) - 0.4)
    ax.set_ylim(bottom=0)
    set_ticks(ax.xaxis, 0, len(numbers), None)
    ax.set_xlabel("head")
    _quiet(ax)


def _positions(ax: Axes, numbers: Array, axis: str, tokens: list[str] | None, cmap: Any) -> None:
    heads, length = numbers.shape
    means = _block_means(numbers)
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
            cmap=OF_WEIGHTS.map if cmap is None else cmap,
            aspect="auto",
            interpolation="nearest",
            extent=(-0.5, length - 0.5, heads - 0.5, -0.5),
        )
        set_ticks(ax.yaxis, 0, heads, None)
        ax.set_ylabel("head")
        add_scale(image, ax, "")
    set_ticks(ax.xaxis, 0, length, tokens)
    block = -(-length // means.shape[1])
    ax.set_xlabel(axis if block == 1 else f"{axis} (means of {block:,} each)")


def _block_means(numbers: Array) -> Array:
    length = numbers.shape[1]
    pixels = -(-length // -(-length // _MOST_POSITIONS))
    starts = np.arange(pixels) * length // pixels
    sizes = np.diff(starts, append=length)
    return np.asarray(np.add.reduceat(numbers, starts, axis=1, dtype=np.float64) / sizes)


def _quiet(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
