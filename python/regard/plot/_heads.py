"""The pictures of all heads, side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from regard._arguments.numbers import count, flag
from regard._arguments.options import WeightOptions, takes_options
from regard._show.labels import strings
from regard.plot._axes import (
    add_scale,
    check_log,
    draw,
    figure_of,
    norm_of,
    room_of,
)
from regard.plot._part import in_pixels, part_of
from regard.plot._source import sources_of, title_of
from regard.plot._ticks import labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.figure import FigureBase
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from regard._runtime.progress import Progress
    from regard._show.labels import TokensArgument
    from regard.plot._source import WeightsArgument

_MOST_PANELS = 400
_INCHES = 1.9  # of a panel
_MOST_INCHES = 24.0
_LEAST_HIGH = 0.25  # of the width of a panel
# More panels are too small for titles and numbers, and slow to lay out.
_MOST_WITH_LABELS = 64


@takes_options(WeightOptions, reference="as for `attention`")
def heads(
    weights_or_query_key: WeightsArgument,
    tokens: TokensArgument = None,
    *,
    names: Iterable[str] | None = None,
    columns: SupportsIndex | None = None,
    region: tuple[slice, slice] | None = None,
    shape: tuple[int, int] | None = None,
    reduce: str = "max",
    log: bool | None = None,
    colorbar: bool = True,
    figure: FigureBase | None = None,
    mask: ArrayLike | None = None,
    progress: Progress = None,
    **imshow: Any,
) -> list[AxesImage]:
    """Draw the attention weights of all heads as a grid of pictures on one scale.

    Parameters
    ----------
    weights_or_query_key : array_like, a tuple (query, key), Recording or RecordedLayer
        As for `attention`. If there are two leading axes, such as layers and heads, the first goes
        down and the second goes right.
    tokens : sequence of str or a pair of them, optional
        As for `attention`, the same for all heads.
    names : iterable of str, optional
        A title for each picture, in the order of the array. Default: its index.
    columns : int, optional
        Number of pictures in a row.
    region, shape, reduce, log, colorbar
        As for `attention`. The color bar belongs to all pictures.
    figure : matplotlib.figure.Figure, optional
        An empty figure, or a part of one, to draw on. Default: a new figure.
    mask, progress
        As for `attention`.
    {options}
    **imshow
        Passed to `matplotlib.axes.Axes.imshow`.

    Returns
    -------
    list of matplotlib.image.AxesImage
        An image for each head, in the order of the array. The first has the ``colorbar``.

    Raises
    ------
    TypeError, ValueError
        As for `attention`; also ValueError if there are more than 400 heads.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> x = np.random.default_rng(0).standard_normal((6, 10, 8))
    >>> images = regard.plot.heads((x, x), is_causal=True, figure=Figure())
    >>> [image.axes.get_title() for image in images]
    ['head 0', 'head 1', 'head 2', 'head 3', 'head 4', 'head 5']
    """
    given = [weights_or_query_key]
    (source,) = sources_of(heads, given, mask, progress, reduce, imshow)
    places = list(np.ndindex(source.lead))
    if len(places) > _MOST_PANELS:
        raise ValueError(
            f"at most {_MOST_PANELS} heads fit in one figure, got {len(places)}: draw some of them"
        )
    titles = _titles(names, places, source.lead)
    down, across = _grid(source.lead, columns)
    part = part_of(region, source.sizes, len(places))
    parts = [source.labeled(part, tokens, source.offset(place)) for place in places]
    is_log, has_scale = check_log(log), flag("colorbar", colorbar)
    inches = min(_INCHES, _MOST_INCHES / max(down, across, 1))
    high = max(_LEAST_HIGH, min(1.0, part.lengths[0] / part.lengths[1]))
    size = (
        max(4.8, across * inches + 1.6),
        max(1.2, down * (high * inches + 0.2 * (1 - high)) + 0.4),
    )
    is_crowded = len(places) > _MOST_WITH_LABELS
    with figure_of(figure, size, "none" if is_crowded else "compressed") as drawing:
        if is_crowded and figure is None:
            drawing.subplots_adjust(0.07, 0.04, 0.95, 0.98, wspace=0.1, hspace=0.35)
        panels = drawing.subplots(down, across, squeeze=False).reshape(-1)
        part = in_pixels(part, shape, room_of(panels[0], in_grid=True), len(places))
        values = source.picture(None, part, reduce)
        values = values.reshape(len(places), *values.shape[-2:])
        norm = norm_of(values, is_log, imshow)
        images = []
        for number, (ax, picture) in enumerate(zip(panels, values, strict=False)):
            images.append(draw(ax, picture, parts[number], norm, imshow))
            _label_panel(ax, titles[number], number, across, len(places))
        for ax in panels[len(places) :]:
            ax.remove()
        drawing.supxlabel("key", fontsize="medium")
        drawing.supylabel(
            "query position" if any(each.offset for each in parts) else "query", fontsize="medium"
        )
        if has_scale:
            add_scale(images[0], list(panels[: len(places)]), part.label(reduce), values)
    return images


def _titles(
    names: Iterable[str] | None, places: list[tuple[int, ...]], lead: tuple[int, ...]
) -> list[str]:
    if names is None:
        return [title_of(place, lead) for place in places]
    titles = strings("names", names)
    if len(titles) != len(places):
        raise ValueError(f"names must have one for each head, {len(places)}, got {len(titles)}")
    return labels(titles)


def _grid(lead: tuple[int, ...], columns: SupportsIndex | None) -> tuple[int, int]:
    """Return the numbers of rows and columns of pictures."""
    heads = math.prod(lead)
    if columns is not None:
        across = min(count("columns", columns, minimum=1), max(heads, 1))
    elif len(lead) > 1 and heads > lead[-1]:
        across = lead[-1]
    else:
        side = max(1, math.ceil(math.sqrt(heads)))
        across = next((n for n in range(side, 2 * side) if n and heads % n == 0), side)
    return max(1, -(-heads // across)), across


def _label_panel(ax: Any, title: str, number: int, across: int, panels: int) -> None:
    """Add the title of a panel, and ticks if no neighbor has the same ticks."""
    if panels > _MOST_WITH_LABELS:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_title(title, fontsize=5, pad=1.5)
        return
    ax.set_title(title, fontsize="small", pad=3)
    ax.tick_params(labelsize="x-small")
    is_lowest = number + across >= panels
    ax.tick_params(labelbottom=is_lowest, labelleft=number % across == 0)
