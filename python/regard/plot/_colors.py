"""The colors and scales of weights and of differences, as on the explorer's light pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import Colormap, FuncNorm, ListedColormap, LogNorm, Normalize

from regard._show.colors import DECADES, DIFFERENCE_DECADES, LEVELS, diverging, sequential

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_THEME = "light"


def _map(name: str, table: Array) -> Colormap:
    """Return a color map for color-blind readers, in which NaN is pink."""
    shares = table / 255
    return ListedColormap(shares[:LEVELS], name).with_extremes(bad=shares[LEVELS])


OF_WEIGHTS = _map("regard_weights", sequential(_THEME))
OF_DIFFERENCES = _map("regard_differences", diverging(_THEME))
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
