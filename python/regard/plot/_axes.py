"""Axes and figures to draw on, and the drawing of a picture with its colors and its scale.

Colors are those of the explorer's light pages.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import matplotlib
import numpy as np
from matplotlib.artist import ArtistInspector
from matplotlib.axes import Axes
from matplotlib.colorbar import make_axes, make_axes_gridspec
from matplotlib.colors import Colormap, FuncNorm, ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.transforms import Bbox

from regard._arguments.keywords import refuse_keywords
from regard._arguments.numbers import flag
from regard._show.colors import DECADES, DIFFERENCE_DECADES, LEVELS, diverging, sequential
from regard.plot._part import has_square_entries
from regard.plot._ticks import set_ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from matplotlib.figure import FigureBase

    from regard._arguments.arrays import Array
    from regard.plot._part import Part


Layout: TypeAlias = Literal["compressed", "constrained", "none"]


# The part of axes that a layout may use for labels and a color bar: a share, or a number of inches
# if the axes do not share their labels with other axes.
_SHARE_OF_LABELS, _INCHES_OF_LABELS = 0.2, 0.6
# Weights below this have no scale, because their logarithms are outside the range of the picture.
_TINY = 1e-300
_SIZE = 6.4, 4.2  # inches, of a figure and of a picture in it
_LEAST_HEIGHT, _HEIGHT_OF_LABELS = 0.8, 1.0
_WIDEST_SCALE = 0.2
# For the label of a color bar, which has several lines next to a low picture.
_LEAST_LETTERS, _LETTERS_AN_INCH = 12, 10.0
_MOST_OFFSET = 1 << 40  # matplotlib cannot distinguish larger positions
_OWN = {"self", "X", "data", "array", "extent", "origin", "figure", "axes", "transform"}
_THEME = "light"


def _color_map(name: str, table: Array) -> Colormap:
    """Return a color map for color-blind readers, in which NaN is pink."""
    shares = table / 255
    return ListedColormap(shares[:LEVELS], name).with_extremes(bad=shares[LEVELS])


OF_WEIGHTS = _color_map("regard_weights", sequential(_THEME))
OF_DIFFERENCES = _color_map("regard_differences", diverging(_THEME))
# Ticks on the scale of differences whose labels do not overlap.
TICKS_OF_DIFFERENCES = (-1.0, -0.01, 0.0, 0.01, 1.0)


def of_level(level: int) -> tuple[float, float, float]:
    """Return the color of a level of weights, of which 0 is hidden and 254 is 1."""
    red, green, blue = sequential(_THEME)[level] / 255
    return float(red), float(green), float(blue)


def logarithmic(low: float | None, high: float) -> Normalize:
    """Return the scale of weights: from 1e-6 unless `low` is given; less has the lowest color."""
    low = min(10.0**-DECADES, high / 10) if low is None else low
    return LogNorm(low, high, clip=True)


def logarithmic_differences(end: float) -> Normalize:
    """Return a scale that is logarithmic on both sides of 0, where less than 1e-4 is 0."""
    return FuncNorm((_shares, _differences), -end, end, clip=True)


def _shares(differences: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = 1 + np.log10(np.abs(differences)) / DIFFERENCE_DECADES
        return np.asarray(np.sign(differences) * np.maximum(sizes, 0))


def _differences(shares: Array) -> Array:
    sizes = 10.0 ** (DIFFERENCE_DECADES * (np.abs(shares) - 1))
    return np.asarray(np.sign(shares) * sizes)


def check_imshow(function: Callable[..., Any], imshow: dict[str, Any]) -> None:
    """Raise TypeError, with advice, for keywords that neither the function nor imshow accepts."""
    drawing = set(inspect.signature(Axes.imshow).parameters) - _OWN
    drawing |= set(ArtistInspector(AxesImage).get_setters()) - _OWN
    if unknown := imshow.keys() - drawing:
        refuse_keywords(f"regard.plot.{function.__name__}", unknown)


@contextmanager
def axes_of(ax: Axes | None, lengths: tuple[int, int]) -> Iterator[Axes]:
    """Yield the axes to draw on: the caller's axes, or axes in a new pyplot figure.

    A new figure has the height of a picture with these numbers of queries and keys.
    """
    if ax is None:
        width, height = _SIZE
        picture = max(_LEAST_HEIGHT, min(1.0, lengths[0] / lengths[1]) * height)
        with figure_of(None, (width, picture + _HEIGHT_OF_LABELS)) as figure:
            yield figure.subplots()
        return
    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be a matplotlib Axes, got {type(ax).__name__}")
    yield ax


@contextmanager
def figure_of(
    figure: FigureBase | None, size: tuple[float, float], layout: Layout = "compressed"
) -> Iterator[FigureBase]:
    """Yield the caller's figure to draw on, or a new figure, which is closed if drawing fails.

    The layout "compressed" is for pictures drawn to scale; "constrained" would cut off labels.

    Notebooks show new figures, and ``plt.show()`` opens them.
    """
    if figure is not None:
        if not isinstance(figure, Figure | SubFigure):
            raise TypeError(f"figure must be a matplotlib Figure, got {type(figure).__name__}")
        yield figure
        return
    from matplotlib import pyplot

    new = pyplot.figure(figsize=size, layout=layout)
    try:
        yield new
    except BaseException:
        pyplot.close(new)
        raise


def room_of(ax: Axes, in_grid: bool = False) -> tuple[int, int]:
    """Return the minimum number of rows and columns of screen pixels that the axes have."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    inches = 0.0 if in_grid else _INCHES_OF_LABELS * figure.dpi
    box = ax.get_window_extent()
    height, width = (
        max(1, int(min((1 - _SHARE_OF_LABELS) * size, size - inches)))
        for size in (box.height, box.width)
    )
    return height, width


def given_norm(imshow: dict[str, Any], *others: str) -> Normalize | None:
    """Remove the argument `norm` from `imshow`, and reject other arguments for the scale."""
    norm = imshow.pop("norm", None)
    if norm is None:
        return None
    if not isinstance(norm, Normalize):
        raise TypeError(f"norm must be a matplotlib Normalize, got {type(norm).__name__}")
    if {*others, *(name for name in ("vmin", "vmax") if name in imshow)}:
        raise ValueError("norm must be left out with log, vmin and vmax, which define a norm")
    return norm


def norm_of(values: Iterable[Array], log: bool | None, imshow: dict[str, Any]) -> Normalize:
    """Return the scale that pictures share, and remove its arguments from `imshow`."""
    norm = given_norm(imshow, *(["log"] if log else []))
    if norm is not None:
        return norm
    low, high = imshow.pop("vmin", None), imshow.pop("vmax", None)
    if log is None:
        log = low is None or low > 0
    if high is None:
        high = largest(values)
        # The same color is the same weight in all pictures on the logarithmic scale.
        high = max(high, 1.0) if log or high <= _TINY else high
    return logarithmic(low, high) if log else Normalize(0.0 if low is None else low, high)


def check_log(log: bool | None) -> bool | None:
    """Return the argument `log`, or raise TypeError."""
    return None if log is None else flag("log", log)


def largest(values: Iterable[Array]) -> float:
    """Return the largest finite number of some pictures, or 0."""
    found = [each[np.isfinite(each)] for each in values]
    return max((float(each.max()) for each in found if each.size), default=0.0)


def draw(
    ax: Axes,
    values: Array,
    part: Part,
    norm: Normalize,
    imshow: dict[str, Any],
    colors: Colormap = OF_WEIGHTS,
) -> AxesImage:
    """Draw one picture, with queries down and keys across, each at its position."""
    (top, bottom), (left, right), offset = part.queries, part.keys, part.offset
    if abs(offset) > _MOST_OFFSET:
        raise ValueError(
            f"query_offset must be from {-_MOST_OFFSET:,} to {_MOST_OFFSET:,} in a picture, got "
            f"{offset:,}"
        )
    image = ax.imshow(
        values,
        norm=norm,
        origin="upper",
        extent=(left - 0.5, right - 0.5, offset + bottom - 0.5, offset + top - 0.5),
        **_with_defaults(imshow, part.lengths, colors),
    )
    ax.spines[:].set_linewidth(0.6)
    of_queries, of_keys = part.tokens
    set_ticks(ax.xaxis, left, right - left, of_keys and of_keys[left:right])
    set_ticks(ax.yaxis, offset + top, bottom - top, of_queries and of_queries[top:bottom])
    return image


def _with_defaults(
    imshow: dict[str, Any], lengths: tuple[int, int], colors: Colormap
) -> dict[str, Any]:
    chosen = {"interpolation": "nearest", "cmap": colors, **imshow}
    chosen.setdefault("aspect", "equal" if has_square_entries(lengths) else "auto")
    if chosen["cmap"] is None:
        chosen["cmap"] = colors
    elif isinstance(chosen["cmap"], str):
        named = matplotlib.colormaps.get_cmap(chosen["cmap"])
        chosen["cmap"] = named.with_extremes(bad=tuple(colors.get_bad()))
    return chosen


def add_scale(
    image: AxesImage,
    axes: Axes | Sequence[Axes],
    label: str,
    values: Iterable[Array] = (),
    ticks: Sequence[float] | None = None,
) -> None:
    """Add a color bar next to the axes, whose label has a note if some values are NaN.

    Its width does not grow with the number of axes.
    """
    if any(np.isnan(each).any() for each in values):
        label = f"{label} (pink: NaN)".strip()
    figure = image.axes.get_figure()
    assert figure is not None
    is_clipped = isinstance(image.norm, LogNorm) and image.norm.clip
    panels = [axes] if isinstance(axes, Axes) else list(axes)
    height = Bbox.union([each.get_window_extent() for each in panels]).height
    letters = max(_LEAST_LETTERS, int(height / figure.dpi * _LETTERS_AN_INCH))
    fraction = min(0.15, 0.6 / len(panels) ** 0.5)
    # A bar next to a narrow picture is narrow too.
    narrowness = image.axes.get_data_ratio() if image.axes.get_aspect() == 1 else 0.0
    aspect = max(20.0, height / figure.dpi / _WIDEST_SCALE, narrowness / fraction)
    engine = figure.get_layout_engine()
    # tight_layout would move the pictures without the bar if it had no place in their grid.
    has_grid = len(panels) == 1 and panels[0].get_subplotspec() is not None
    has_grid = has_grid and (engine is None or engine.colorbar_gridspec)
    make: Any = make_axes_gridspec if has_grid else make_axes
    place, _ = make(panels[0] if has_grid else panels, fraction=fraction, aspect=aspect)

    def as_high_as_the_pictures(bar: Any, _: Any) -> Bbox:
        # Pictures with square entries are smaller than their places, by an amount that is known
        # when the figure is drawn.
        own = bar.get_position(original=True)
        drawn = Bbox.union([each.get_position() for each in panels])
        return Bbox.from_extents(own.x0, drawn.y0, own.x1, drawn.y1)

    as_high_as_the_pictures.get_subplotspec = place.get_subplotspec  # type: ignore[attr-defined]
    place.set_axes_locator(as_high_as_the_pictures)
    bar = figure.colorbar(
        image,
        cax=place,
        label=fill(label, letters),
        extend="min" if is_clipped else "neither",
        ticks=ticks,
    )
    bar.outline.set_linewidth(0.6)
    bar.ax.tick_params(width=0.6, length=2.5)


def name_axes(ax: Axes, part: Part) -> None:
    """Label the axes."""
    ax.set_xlabel("key")
    ax.set_ylabel("query position" if part.offset else "query")
