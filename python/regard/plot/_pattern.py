"""The picture of the keys that each query sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Patch

from regard._arguments.arrays import as_array, broadcasts_to
from regard._arguments.foreign import with_arrays
from regard._arguments.hints import warn_if_zero_one
from regard._arguments.masks import Masks, is_sparse
from regard._arguments.numbers import count, flag
from regard._arguments.option_table import PER_ENTRY
from regard._arguments.options import PatternOptions, names_of, takes_options
from regard._attention.check import check_call
from regard._show.labels import tokens_of_axes
from regard._show.weights import areas
from regard.plot._axes import add_scale, axes_of, check_imshow, draw, name_axes, of_level, room_of
from regard.plot._part import in_pixels, part_of
from regard.plot._source import head_of
from regard.plot._visible import visible_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import ArrayLike

    from regard._show.labels import TokensArgument
    from regard.plot._part import Part

_HIDDEN, _VISIBLE = of_level(0), of_level(200)  # as of weights
_LINES = "#d5dae0"
_MOST_WITH_LINES = 32  # entries of an axis
_MOST_LENGTH = 1 << 27

_OPTIONS = names_of(PatternOptions)


@takes_options(PatternOptions)
def pattern(
    mask: ArrayLike | None = None,
    q_len: SupportsIndex | None = None,
    kv_len: SupportsIndex | None = None,
    *,
    tokens: TokensArgument = None,
    head: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
    region: tuple[slice, slice] | None = None,
    shape: tuple[int, int] | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
    **imshow: Any,
) -> AxesImage:
    """Draw the keys that each query sees, given a mask and the options of attention.

    Parameters
    ----------
    mask : array_like of bool or float, SparseMask, or a pair (bool, float) of both, optional
        As for `regard.scaled_dot_product_attention`. The finite numbers of a float mask are not
        drawn: a key is hidden where the mask adds -inf. A sparse mask of any length is drawn in
        little memory.
    q_len : int, optional
        Number of queries. Required if no mask determines it.
    kv_len : int, optional
        Number of keys. Default: the number of keys of the mask, or `q_len`.
    tokens : sequence of str or a pair of them, optional
        As for `attention`.
    head : int or tuple of int, optional
        The head of the mask to draw, as an index of its leading axes.
    region, shape
        As for `attention`. If a pixel represents a block, its color is the visible share of the
        block, which is exact for any lengths.
    colorbar : bool, default True
        Whether to add a legend or a color bar.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. Default: a new figure.
    {options}
        Options per batch entry must be scalars, since a picture shows one entry.
    **imshow
        Passed to `matplotlib.axes.Axes.imshow`.

    Returns
    -------
    matplotlib.image.AxesImage
        The image. Its array contains the visible share of each pixel: 0 or 1 if each pair of query
        and key has a separate pixel.

    Raises
    ------
    TypeError
        If an argument has the wrong type, or there is neither a mask nor `q_len`.
    ValueError
        If shapes disagree, a number is out of range, or there is nothing to draw.

    Examples
    --------
    >>> import regard.plot
    >>> from matplotlib.figure import Figure
    >>> ax = Figure().subplots()
    >>> image = regard.plot.pattern(q_len=4, is_causal=True, window=(1, None), ax=ax)
    >>> image.get_array().astype(int).tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    options = {name: imshow.pop(name) for name in _OPTIONS if name in imshow}
    check_imshow(pattern, imshow)
    if mask is not None:
        warn_if_zero_one(mask)
    options = _of_one_entry(dict(with_arrays(options)))
    masks, sizes = _one_mask(Masks.of(mask), q_len, kv_len, head)
    # Wrong options raise the same errors as in an attention call.
    query, key = (np.broadcast_to(np.float32(0), (size, 1)) for size in sizes)
    positions = check_call(query, key, None, masks.argument, options).positions
    has_scale = flag("colorbar", colorbar)
    offset = int(positions.query_offset)
    texts = tokens_of_axes(tokens, *sizes, offset)
    part = part_of(region, sizes)._replace(offset=offset, tokens=texts)
    for name in ("norm", "vmin", "vmax"):
        if name in imshow:
            raise ValueError(f"{name} must be left out: the scale goes from hidden to visible")
    with axes_of(ax, part.lengths) as axes:
        part = in_pixels(part, shape, room_of(axes))
        shares = visible_pairs(positions, masks, part) / areas(part.rows, part.columns)
        norm = Normalize(0.0, 1.0)
        two = LinearSegmentedColormap.from_list("pattern", [_HIDDEN, _VISIBLE])
        image = draw(axes, shares, part, norm, {"cmap": two, **imshow})
        name_axes(axes, part)
        _draw_lines(axes, part)
        if has_scale and part.is_exact:
            _add_legend(axes, image)
        elif has_scale:
            add_scale(image, axes, f"visible share of each {part.block_name}")
    return image


def _of_one_entry(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with numbers in place of arrays of one number, or raise ValueError."""
    for name in PER_ENTRY:
        if options.get(name) is None or isinstance(options[name], str):
            continue
        array = as_array(name, options[name])
        if array.ndim == 0:
            continue
        if array.size != 1:
            raise ValueError(
                f"{name} must be one number for one picture, got shape {array.shape}: pass the "
                "number of one batch entry"
            )
        options[name] = array.reshape(())[()]
    return options


def _one_mask(
    masks: Masks, q_len: SupportsIndex | None, kv_len: SupportsIndex | None, head: Any
) -> tuple[Masks, tuple[int, int]]:
    """Return the masks of one head, and the numbers of queries and keys."""
    parts = masks.arrays
    shape = np.broadcast_shapes((1, 1), *map(_shape_of, parts))
    if is_sparse(masks.shown):
        shape = (*shape[:-1], max(shape[-1], masks.shown.shape[-1]))
    if q_len is None and not parts:
        raise TypeError("q_len must be given if there is no mask")
    queries = shape[-2] if q_len is None else count("q_len", q_len)
    if kv_len is not None:
        keys = count("kv_len", kv_len)
    else:
        keys = shape[-1] if parts and shape[-1] != 1 else queries
    sizes = queries, keys
    if max(sizes) > _MOST_LENGTH:
        raise ValueError(
            f"q_len and kv_len must be at most {_MOST_LENGTH:,} in a picture, got {queries:,} and "
            f"{keys:,}"
        )
    if not parts:
        return masks, sizes
    target = (*shape[:-2], *sizes)
    has_more = is_sparse(masks.shown) and masks.shown.shape[-1] > keys
    if has_more or not all(broadcasts_to(_shape_of(part), target) for part in parts):
        raise ValueError(f"mask must broadcast to (q_len, kv_len) = {sizes}, got shape {shape}")
    place = head_of(head, shape[:-2])
    return masks.at((*place, slice(None), slice(None))), sizes


def _shape_of(mask: Any) -> tuple[int, ...]:
    """Return the shape to which a mask broadcasts; a sparse mask may have fewer keys."""
    shape: tuple[int, ...] = mask.shape
    return (*shape[:-1], 1) if is_sparse(mask) else shape


def _draw_lines(ax: Axes, part: Part) -> None:
    """Draw lines between the entries of a small picture, so that they can be counted."""
    if not part.is_exact or max(part.height, part.width) > _MOST_WITH_LINES:
        return
    ax.set_xticks(np.arange(part.keys[0] + 1, part.keys[1]) - 0.5, minor=True)
    ax.set_yticks(np.arange(part.queries[0] + 1, part.queries[1]) + part.offset - 0.5, minor=True)
    ax.tick_params(which="minor", length=0)
    ax.grid(which="minor", color=_LINES, linewidth=1.2)


def _add_legend(ax: Axes, image: AxesImage) -> None:
    colors = image.get_cmap()
    handles = [Patch(facecolor=colors(share), edgecolor=_LINES) for share in (1.0, 0.0)]
    ax.legend(
        handles,
        ["visible", "hidden"],
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        borderaxespad=0.0,
        frameon=False,
        handlelength=1.0,
    )
