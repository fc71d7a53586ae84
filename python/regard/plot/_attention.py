"""The picture of one head, and of the difference between two heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from matplotlib.colors import FuncNorm, Normalize

from regard._arguments.numbers import flag
from regard._arguments.options import WeightOptions, takes_options
from regard.plot._axes import (
    OF_DIFFERENCES,
    TICKS_OF_DIFFERENCES,
    add_scale,
    axes_of,
    check_log,
    draw,
    given_norm,
    largest,
    logarithmic_differences,
    name_axes,
    norm_of,
    room_of,
)
from regard.plot._part import in_pixels, part_of
from regard.plot._source import head_of, sources_of, title_of
from regard.plot._ticks import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array
    from regard._runtime.progress import Progress
    from regard._show.labels import TokensArgument
    from regard.plot._source import WeightsArgument


@takes_options(WeightOptions, reference="as in `regard.scaled_dot_product_attention`")
def attention(
    weights_or_query_key: WeightsArgument,
    tokens: TokensArgument = None,
    *,
    head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
    region: tuple[slice, slice] | None = None,
    shape: tuple[int, int] | None = None,
    reduce: str = "max",
    log: bool | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    mask: ArrayLike | None = None,
    progress: Progress = None,
    **imshow: Any,
) -> AxesImage:
    """Draw the attention weights of one head: queries go down, keys go right.

    Parameters
    ----------
    weights_or_query_key : array_like, a tuple (query, key), Recording or RecordedLayer
        Weights of shape (..., q_len, kv_len). Or query and key, as for `regard.attention_map`: then
        the weights are computed only for the picture, and their number is not limited. A recording
        has its own masks, options and tokens, and its first leading axis is its layers.
    tokens : sequence of str or a pair of them, optional
        The texts of the keys, which are also the texts of the queries at the same positions; or a
        pair (query tokens, key tokens), in which None means position numbers.
    head : int or tuple of int, optional
        The head to draw, as an index of the leading axes. It may be omitted if there is only one.
    region : (slice, slice), optional
        The queries and keys to draw. Default: all.
    shape : (int, int), optional
        The maximum number of rows and columns of the picture. If there are more weights, a pixel
        represents a block of weights, as the label of the color bar states. Default: the number of
        screen pixels of the axes, so that no pixel of the picture is lost.
    reduce : {"max", "mean", "sum"}, default "max"
        The number that a pixel shows of its block.
    log : bool, optional
        Whether colors follow the logarithm of the weights, from 1e-6 to 1 as in `regard.explore`.
        Smaller weights, and hidden keys, have the lowest color. False makes colors follow the
        weights, from 0 to the largest. Default: True, unless `norm` is given or `vmin` is not
        positive.
    colorbar : bool, default True
        Whether to add a color bar.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. Default: a new figure.
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        With query and key: as for `regard.scaled_dot_product_attention`.
    progress : bool or callable, optional
        With query and key: as for `regard.attention_map`.
    {options}
    **imshow
        Passed to `matplotlib.axes.Axes.imshow`: ``cmap``, ``vmin``, ``vmax``, ``norm``,
        ``aspect``, ``alpha`` and others.

    Returns
    -------
    matplotlib.image.AxesImage
        The image. Its ``axes``, ``figure`` and ``colorbar`` are the other parts of the drawing.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or an option of query and key is given with weights.
    ValueError
        If the weights are negative or a row adds up to more than 1, if tokens or shapes do not
        match, if there is nothing to draw, or if the picture would have more than 33 million
        pixels.

    See Also
    --------
    heads : draws all heads.
    regard.attention_map : returns the same pixels as an array.

    Notes
    -----
    NaN is pink. Characters that are missing from the font are shown as escapes; list fonts that
    contain them in ``matplotlib.rcParams["font.family"]``.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> x = np.random.default_rng(0).standard_normal((4, 8))
    >>> ax = Figure().subplots()
    >>> image = regard.plot.attention((x, x), ["the", "cat", "sat", "down"], is_causal=True, ax=ax)
    >>> image.get_array()[0].tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    (source,) = sources_of(attention, [weights_or_query_key], mask, progress, reduce, imshow)
    place = head_of(head, source.lead)
    is_log, has_scale = check_log(log), flag("colorbar", colorbar)
    part = source.labeled(part_of(region, source.sizes), tokens, source.offset(place))
    with axes_of(ax, part.lengths) as axes:
        part = in_pixels(part, shape, room_of(axes))
        values = source.picture(place, part, reduce)
        image = draw(axes, values, part, norm_of([values], is_log, imshow), imshow)
        name_axes(axes, part)
        if has_scale:
            add_scale(image, axes, part.label(reduce), [values])
    return image


@takes_options(WeightOptions, reference="as for `attention`")
def compare(
    a: WeightsArgument,
    b: WeightsArgument | None = None,
    tokens: TokensArgument = None,
    *,
    names: tuple[str, str] | None = None,
    head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
    other_head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
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
    """Draw the weights of a head minus those of another, on a scale centered at 0.

    Pixels are orange where `a` has the larger weight, and purple where `b` has the larger weight.

    Parameters
    ----------
    a, b : array_like, tuple (query, key), Recording or RecordedLayer
        Two heads of the same lengths, as for `attention`. Options apply to both. The default of `b`
        is `a`, for two heads of one model.
    tokens : sequence of str or a pair of them, optional
        As for `attention`.
    names : (str, str), optional
        The names of `a` and `b` in the label of the color bar. Default: ``("a", "b")``, or the
        indices of the two heads if `b` is omitted.
    head : int or tuple of int, optional
        The head to draw, as an index of the leading axes of both, or of the array that has leading
        axes.
    other_head : int or tuple of int, optional
        The head of `b`, if it is another one.
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
        As for `attention`; also TypeError if neither `b` nor `other_head` is given, and ValueError
        if the lengths of `a` and `b` differ.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> a, b = [[0.5, 0.5], [0.0, 1.0]], [[0.25, 0.75], [0.0, 1.0]]
    >>> image = regard.plot.compare(a, b, ax=Figure().subplots())
    >>> image.get_array().tolist(), image.get_clim()
    ([[0.25, -0.25], [0.0, 0.0]], (-1.0, 1.0))
    >>> image = regard.plot.compare([a, b], head=0, other_head=1, ax=Figure().subplots())
    >>> image.colorbar.ax.get_ylabel()
    'weight, head 0 − head 1'
    """
    if b is None and other_head is None:
        raise TypeError("b or other_head must be given, got neither")
    given = [a] if b is None else [a, b]
    sources = sources_of(compare, given, mask, progress, reduce, imshow)
    if b is None:
        sources *= 2
    if imshow.get("vmin") is not None:
        raise ValueError("vmin must be left out: the scale goes from -vmax to vmax")
    imshow.pop("vmin", None)
    is_log, has_scale = check_log(log), flag("colorbar", colorbar)
    if sources[0].sizes != sources[1].sizes:
        first, second = ("{:,} queries and {:,} keys".format(*each.sizes) for each in sources)
        raise ValueError(f"a and b must have the same lengths, got {first}, and {second}")
    has_heads = any(each.lead for each in sources)
    chosen = [head, head if other_head is None else other_head]
    places = [
        head_of(place, each.lead, name) if each.lead or not has_heads else ()
        for place, each, name in zip(chosen, sources, ("head", "other_head"), strict=True)
    ]
    if names is None:
        first, second = (title_of(each, sources[0].lead) for each in places)
        names = (first, second) if b is None else ("a", "b")
    is_pair = isinstance(names, tuple | list) and len(names) == 2
    if not is_pair or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a pair of str, got {names!r}")
    title = " − ".join(labels(names))
    offsets = [each.offset(place) for each, place in zip(sources, places, strict=True)]
    offset = next((each for each in offsets if each is not None), None)
    part = sources[0].labeled(part_of(region, sources[0].sizes), tokens, offset)
    with axes_of(ax, part.lengths) as axes:
        part = in_pixels(part, shape, room_of(axes))
        weights, others = (
            each.picture(place, part, reduce) for each, place in zip(sources, places, strict=True)
        )
        with np.errstate(invalid="ignore"):
            values = weights - others
        norm = _centered(values, is_log, imshow)
        image = draw(axes, values, part, norm, imshow, OF_DIFFERENCES)
        name_axes(axes, part)
        if has_scale:
            ticks = TICKS_OF_DIFFERENCES if isinstance(norm, FuncNorm) and norm.vmax == 1 else None
            add_scale(image, axes, f"{part.label(reduce)}, {title}", [values], ticks)
    return image


def _centered(values: Array, log: bool | None, imshow: dict[str, Any]) -> Normalize:
    norm = given_norm(imshow, *(["log"] if log else []))
    if norm is not None:
        return norm
    most, end = largest([np.abs(values)]), imshow.pop("vmax", None)
    if log is None or log:
        return logarithmic_differences(max(most, 1.0) if end is None else abs(end))
    end = (most or 1.0) if end is None else abs(end)
    return Normalize(-end, end)
