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


def test_arguments_of_imshow(pyplot):
    figure = pyplot.figure()
    ax = figure.subplots()
    image = drawn(VALUES - 0.5, ax=ax, colorbar=False, cmap="magma", vmin=-2, vmax=3)
    assert image.axes is ax
    assert image.colorbar is None
    assert image.get_clim() == (-2, 3)
    assert image.get_cmap().name == "magma"
    from matplotlib.colors import TwoSlopeNorm

    norm = TwoSlopeNorm(0, -1, 1)
    assert drawn(VALUES, norm=norm).norm is norm


def test_names_that_differ_have_labels_that_differ(pyplot):
    names = [f"model.decoder.layers.{number}.encoder_attention" for number in range(3)]
    formatter = drawn(VALUES, names={"layers": names}).axes.yaxis.get_major_formatter()
    assert len({formatter(at, 0) for at in range(3)}) == 3
    images = regard.plot.heads(np.broadcast_to(np.eye(4), (3, 4, 4)), names=names)
    assert len({image.axes.get_title() for image in images}) == 3
    long = ["a" * 60 + end for end in "bcd"]  # for every label
    formatter = drawn(VALUES, names={"layers": long}).axes.yaxis.get_major_formatter()
    assert {len(formatter(at, 0)) for at in range(3)} == {48}
