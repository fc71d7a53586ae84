"""Test pictures of one number per head against the numbers."""

import numpy as np
import pytest

import regard

pytest.importorskip("matplotlib")

VALUES = np.random.default_rng(0).random((3, 5))


def drawn(values, **options):
    image = regard.plot.layer_heads(values, **options)
    image.figure.canvas.draw()
    return image


@pytest.mark.parametrize("convert", [np.asarray, np.float16, np.ndarray.tolist, np.asfortranarray])
def test_pixels_are_the_numbers(pyplot, convert):
    image = drawn(convert(VALUES), label="importance")
    np.testing.assert_array_equal(image.get_array(), np.asarray(convert(VALUES), float))
    assert image.axes.get_xlabel() == "head"
    assert image.axes.get_ylabel() == "layer"
    assert image.colorbar.ax.get_ylabel() == "importance"
    assert image.get_clim() == (0, np.asarray(convert(VALUES)).max())


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([[1.0, 2.0]], (0, 2)),
        ([[-1.0, 2.0]], (-1, 2)),
        ([[-3.0, -2.0]], (-3, 0)),
        ([[0.0, 0.0]], (0, 1)),
        ([[True, False]], (0, 1)),
        ([[np.nan, 4.0], [np.inf, -np.inf]], (0, 4)),
        ([[np.nan]], (0, 1)),
    ],
)
def test_colors_reach_from_0_or_the_smallest_number(pyplot, values, limits):
    assert drawn(values).get_clim() == limits


def test_nan_is_pink_and_the_label_says_so(pyplot):
    image = drawn([[1.0, np.nan]])
    assert image.colorbar.ax.get_ylabel() == "(pink: NaN)"
    red, green, blue, _ = image.cmap(np.ma.masked)
    assert red > blue > green
