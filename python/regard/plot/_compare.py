"""The difference between the weights of two heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from matplotlib.colors import FuncNorm, Normalize

from regard._arguments.hints import warn_if_zero_one
from regard._arguments.numbers import flag
from regard._arguments.options import WeightOptions, takes_options
from regard._show.tokens import tokens_of_axes
from regard.plot._axes import (
    add_scale,
    axes_of,
    check_imshow,
    check_log,
    draw,
    given_norm,
    largest,
    name_axes,
    room_of,
    scale_label,
)
from regard.plot._colors import OF_DIFFERENCES, TICKS_OF_DIFFERENCES, logarithmic_differences
from regard.plot._labels import labels
from regard.plot._pooling import check_reduce, cut_of, part_of
from regard.plot._source import WEIGHT_OPTIONS, head_of, source_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike, NDArray

    from regard._runtime.progress import Progress
    from regard._show.tokens import TokensArgument
    from regard.plot._source import WeightsArgument


@takes_options(WeightOptions, reference="as for `attention`")
def compare(
    a: WeightsArgument,
    b: WeightsArgument,
    tokens: TokensArgument = None,
    *,
    names: tuple[str, str] = ("a", "b"),
    head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
    region: tuple[slice, slice] | None = None,
    shape: tuple[int, int] | None = None,
    reduce: str = "mean",
    log: bool | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    mask: ArrayLike | None = None,
    progress: Progress = None,
    **imshow: Any,
) -> AxesImage:
    """Draw the weights of `a` minus the weights of `b`, on a scale centered at 0.

    Pixels are orange where `a` has the larger weight, and purple where `b` has the larger weight.

    Parameters
    ----------
    a, b : array_like, or tuples (query, key)
        Two heads of the same lengths, as for `attention`. Options apply to both.
    tokens : sequence of str or a pair of them, optional
        As for `attention`.
    names : (str, str), default ("a", "b")
        The names of `a` and `b` in the label of the color bar.
    head : int or tuple of int, optional
        The head to draw, as an index of the leading axes of both, or of the array that has leading
        axes.
    region, shape
        As for `attention`.
    reduce : {"mean", "max", "sum"}, default "mean"
        The number to subtract if a pixel represents a block of weights.
    log : bool, optional
        Whether colors follow the logarithm of the sizes of differences, from 1e-4 to 1 as in
        `regard.explore`; smaller differences have the color of 0. False makes colors follow the
        differences, up to the largest. Default: True, unless `norm` is given.
    colorbar, ax, mask, progress
        As for `attention`.
    {options}
    **imshow
        Passed to `matplotlib.axes.Axes.imshow`. The scale ends at ``-vmax`` and ``vmax``.

    Returns
    -------
    matplotlib.image.AxesImage
        The image. Its ``axes``, ``figure`` and ``colorbar`` are the other parts of the drawing.

    Raises
    ------
    TypeError, ValueError
        As for `attention`; also ValueError if the lengths of `a` and `b` differ.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> a, b = [[0.5, 0.5], [0.0, 1.0]], [[0.25, 0.75], [0.0, 1.0]]
    >>> image = regard.plot.compare(a, b, ax=Figure().subplots())
    >>> image.get_array().tolist(), image.get_clim()
    ([[0.25, -0.25], [0.0, 0.0]], (-1.0, 1.0))
    """
    options = {name: imshow.pop(name) for name in WEIGHT_OPTIONS if name in imshow}
    check_imshow(compare, imshow)
    if mask is not None:
        warn_if_zero_one(mask)
    if imshow.get("vmin") is not None:
        raise ValueError("vmin must be left out: the scale goes from -vmax to vmax")
    imshow.pop("vmin", None)
    check_reduce(reduce)
    title = " − ".join(_pair_of_names(names))
    is_log, has_scale = check_log(log), flag("colorbar", colorbar)
    sources = [source_of("compare", each, mask, progress, options) for each in (a, b)]
    if sources[0].sizes != sources[1].sizes:
        first, second = ("{:,} queries and {:,} keys".format(*each.sizes) for each in sources)
        raise ValueError(f"a and b must have the same lengths, got {first}, and {second}")
    has_heads = any(each.lead for each in sources)
    places = [head_of(head, each.lead) if each.lead or not has_heads else () for each in sources]
    offsets = [each.offset(place) for each, place in zip(sources, places, strict=True)]
    offset = next((each for each in offsets if each is not None), None)
    texts = tokens_of_axes(
        sources[0].tokens if tokens is None else tokens, *sources[0].sizes, offset
    )
    cut = cut_of(region, sources[0].sizes)
    with axes_of(ax, cut.lengths) as axes:
        part = part_of(cut, shape, room_of(axes))
        left, right = (
            each.picture(place, part, reduce) for each, place in zip(sources, places, strict=True)
        )
        with np.errstate(invalid="ignore"):
            values = left - right
        norm = _centered(values, is_log, imshow)
        image = draw(axes, values, part, norm, offset or 0, texts, imshow, OF_DIFFERENCES)
        name_axes(axes, offset or 0)
        if has_scale:
            label = f"{part.label(reduce)}, {title}"
            ticks = TICKS_OF_DIFFERENCES if isinstance(norm, FuncNorm) and norm.vmax == 1 else None
            add_scale(image, axes, scale_label(label, [values], OF_DIFFERENCES), ticks)
    return image


def _centered(values: NDArray[Any], log: bool | None, imshow: dict[str, Any]) -> Normalize:
    norm = given_norm(imshow, *(["log"] if log else []))
    if norm is not None:
        return norm
    most, end = largest([np.abs(values)]), imshow.pop("vmax", None)
    if log is None or log:
        return logarithmic_differences(max(most, 1.0) if end is None else abs(end))
    end = (most or 1.0) if end is None else abs(end)
    return Normalize(-end, end)


def _pair_of_names(names: Any) -> list[str]:
    if not isinstance(names, tuple | list) or len(names) != 2:
        raise TypeError(f"names must be a pair of str, got {names!r}")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a pair of str, got {names!r}")
    return labels(names)
