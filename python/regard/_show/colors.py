"""Colors of weights, for light pages, dark pages and differences, and the ends of their scales.

Each table has even steps of OKLab lightness, so that larger numbers are darker on a light page and
lighter on a dark page. This holds for color-blind readers and for black-and-white print; hues are
only an aid. Björn Ottosson 2020, "A perceptual color space for image processing".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard._arguments.arrays import Array


# Lightness, chroma and hue in degrees, at even intervals.
_SEQUENTIAL = {
    "light": [
        (0.995, 0.004, 110),
        (0.90, 0.075, 120),
        (0.76, 0.105, 165),
        (0.60, 0.105, 215),
        (0.43, 0.125, 262),
        (0.24, 0.105, 285),
    ],
    "dark": [
        (0.20, 0.012, 265),
        (0.36, 0.10, 275),
        (0.52, 0.115, 245),
        (0.68, 0.11, 195),
        (0.83, 0.125, 135),
        (0.965, 0.09, 105),
    ],
}
_PURPLE, _ORANGE = 300, 60
_MIDDLE = {"light": (0.97, 0.42), "dark": (0.24, 0.86)}
NOT_A_NUMBER = {"light": (214, 39, 120), "dark": (255, 105, 170)}
LEVELS = 255
# By default, colors follow logarithms: of weights from 1e-6 to 1, and of differences from 1e-4 to 1
# on both sides.
DECADES, DIFFERENCE_DECADES = 6, 4


def sequential(theme: str) -> NDArray[np.uint8]:
    """Return the colors of levels 0 to 254, and of NaN, as an array (256, 3) of sRGB."""
    stops = np.array(_SEQUENTIAL[theme], float)
    at = np.linspace(0, len(stops) - 1, LEVELS)
    lightness, chroma, hue = (np.interp(at, range(len(stops)), column) for column in stops.T)
    return np.concatenate([_srgb(lightness, chroma, hue), [NOT_A_NUMBER[theme]]]).astype(np.uint8)


def diverging(theme: str) -> NDArray[np.uint8]:
    """Return the colors of differences from -127 to 127, purple to orange, and of NaN."""
    middle, end = _MIDDLE[theme]
    at = np.linspace(-1, 1, LEVELS)
    lightness = middle + (end - middle) * np.abs(at)
    chroma = 0.15 * np.abs(at) ** 0.8
    hue = np.where(at < 0, _PURPLE, _ORANGE)
    return np.concatenate([_srgb(lightness, chroma, hue), [NOT_A_NUMBER[theme]]]).astype(np.uint8)


def _srgb(lightness: Array, chroma: Array, hue: Array) -> Array:
    angle = np.deg2rad(hue)
    a, b = chroma * np.cos(angle), chroma * np.sin(angle)
    cones = np.stack(
        [
            lightness + 0.3963377774 * a + 0.2158037573 * b,
            lightness - 0.1055613458 * a - 0.0638541728 * b,
            lightness - 0.0894841775 * a - 1.2914855480 * b,
        ],
        axis=-1,
    )
    matrix = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(cones**3 @ matrix.T, 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    colors: Array = np.rint(255 * curved)
    return colors
