"""The picture of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

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
    name_axes,
    norm_of,
    room_of,
    scale_label,
)
from regard.plot._pooling import check_reduce, cut_of, part_of
from regard.plot._source import WEIGHT_OPTIONS, head_of, source_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from regard._runtime.progress import Progress
    from regard._show.tokens import TokensArgument
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
    options = {name: imshow.pop(name) for name in WEIGHT_OPTIONS if name in imshow}
    check_imshow(attention, imshow)
    if mask is not None:
        warn_if_zero_one(mask)
    check_reduce(reduce)
    source = source_of("attention", weights_or_query_key, mask, progress, options)
    place = head_of(head, source.lead)
    offset = source.offset(place)
    texts = tokens_of_axes(source.tokens if tokens is None else tokens, *source.sizes, offset)
    cut = cut_of(region, source.sizes)
    is_log, has_scale = check_log(log), flag("colorbar", colorbar)
    with axes_of(ax, cut.lengths) as axes:
        part = part_of(cut, shape, room_of(axes))
        values = source.picture(place, part, reduce)
        norm = norm_of([values], is_log, imshow)
        image = draw(axes, values, part, norm, offset or 0, texts, imshow)
        name_axes(axes, offset or 0)
        if has_scale:
            add_scale(image, axes, scale_label(part.label(reduce), [values]))
    return image
