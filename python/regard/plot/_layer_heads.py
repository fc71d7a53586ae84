"""The picture of a number for each head: layers go down, heads go right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, is_floating
from regard._arguments.numbers import flag, text
from regard._show.labels import AxisTokens, HeadNames
from regard.plot._axes import add_scale, axes_of, check_imshow, draw, norm_of
from regard.plot._part import Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from regard._arguments.arrays import Array


def layer_heads(
    values: ArrayLike,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    label: str = "",
    colorbar: bool = True,
    ax: Axes | None = None,
    **imshow: Any,
) -> AxesImage:
    """Draw a number for each head of each layer: layers go down, heads go right.

    Parameters
    ----------
    values : array_like, shape (layers, heads)
        The numbers, such as a field of heads of an `AttentionSummary`, the mean of another field
        over queries, or the importance of heads.
    names : mapping, optional
        ``{"layers": [...], "heads": [...]}``, or one of the two: a str for each layer, and for each
        head of a layer. By default, layers and heads are numbered.
    label : str, optional
        The label of the color bar.
    colorbar : bool, default True
        Whether to add a color bar.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. Default: a new figure.
    **imshow
        Passed to `matplotlib.axes.Axes.imshow`: ``cmap``, ``vmin``, ``vmax``, ``norm`` and others.
        By default, colors go from 0, or from the smallest number if one is negative, to the largest
        number: ``vmin=values.min()`` shows small differences.

    Returns
    -------
    matplotlib.image.AxesImage
        The image. Its ``axes``, ``figure`` and ``colorbar`` are the other parts of the drawing.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `values` does not have two axes, there is nothing to draw, or the numbers of names do not
        match.

    See Also
    --------
    statistics : draws the fields of a summary.

    Notes
    -----
    NaN is pink.

    Examples
    --------
    >>> import numpy as np
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> x = np.random.default_rng(0).standard_normal((2, 4, 20, 8))  # two layers of four heads
    >>> summary = regard.summarize_attention(x, x, is_causal=True)
    >>> ax = Figure().subplots()
    >>> image = regard.plot.layer_heads(summary.entropy.mean(axis=-1), label="entropy", ax=ax)
    >>> image.get_array().shape
    (2, 4)
    """
    check_imshow(layer_heads, imshow)
    numbers = as_array("values", values)
    if numbers.dtype.kind not in "biu" and not is_floating(numbers.dtype):
        raise TypeError(f"values must be an array of real numbers, got {numbers.dtype}")
    if numbers.ndim != 2:
        advice = ": pass values[None] for one layer" if numbers.ndim == 1 else ""
        raise ValueError(f"values must be (layers, heads), got shape {numbers.shape}{advice}")
    if not numbers.size:
        raise ValueError(f"values has nothing to draw, got shape {numbers.shape}")
    found = HeadNames.of(names, *numbers.shape)
    title, has_scale = text("label", label), flag("colorbar", colorbar)
    with axes_of(ax, numbers.shape) as axes:
        image = draw_layer_heads(axes, numbers, found, imshow)
        if has_scale:
            add_scale(image, axes, title, [np.asarray(image.get_array())])
    return image


def draw_layer_heads(
    ax: Axes, values: Array, names: HeadNames, imshow: dict[str, Any]
) -> AxesImage:
    """Draw a number for each head of each layer on axes, without a scale."""
    numbers = values.astype(np.float64)
    layers, heads = numbers.shape
    is_finite = np.isfinite(numbers)
    least = np.min(numbers, where=is_finite, initial=0)
    if least < 0 and imshow.get("norm") is None:
        largest = np.max(numbers, where=is_finite, initial=0)
        imshow = {"vmin": least, "vmax": largest, **imshow}
    norm = norm_of([numbers], False, imshow)
    part = Part((0, layers), (0, heads), layers, heads, tokens=AxisTokens(*names))
    image = draw(ax, numbers, part, norm, imshow)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    return image
