"""Test pictures of one number per head, panels of statistics, and pictures of recordings."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

import regard
import regard.plot

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
        ([[np.nan, 4.0], [np.inf, -np.inf]], (0, 4)),
        ([[np.nan]], (0, 1)),
    ],
)
def test_colors_reach_from_0_or_the_smallest_number(pyplot, values, limits):
    assert drawn(values).get_clim() == limits


rng = np.random.default_rng(0)
ALL = (
    "entropy", "max", "effective_count", "mean_distance", "first_mass", "local_mass",
    "previous_token", "induction", "top_k", "column_sums", "column_means",
)  # fmt: skip


def summary_of(heads, length, batch=(), **options):
    query, key = rng.standard_normal((2, *batch, heads, length, 8))
    tokens = np.arange(length) % 5
    return regard.summarize_attention(
        query, key, statistics=ALL, tokens=tokens, is_causal=True, **options
    )


def strip_of(ax):
    return np.asarray(ax.get_images()[0].get_array())


def test_every_field_has_a_panel(pyplot):
    summary = summary_of(3, 20)
    panels = regard.plot.statistics(summary)
    assert set(panels) == set(ALL)
    for name in ("entropy", "max", "effective_count", "column_sums", "column_means"):
        np.testing.assert_allclose(strip_of(panels[name]), getattr(summary, name))
    np.testing.assert_allclose(strip_of(panels["top_k"]), summary.top_k.weights.sum(axis=-1))
    for name in ("previous_token", "induction"):
        heights = [bar.get_height() for bar in panels[name].patches]
        np.testing.assert_allclose(heights, getattr(summary, name))
    assert panels["entropy"].get_xlabel() == "query"
    assert panels["column_sums"].get_xlabel() == "key"
    panels["entropy"].figure.canvas.draw()


def test_many_positions_are_means_and_the_label_says_so(pyplot):
    summary = summary_of(2, 3000)
    ax = regard.plot.statistics(summary, fields="max")["max"]
    np.testing.assert_allclose(strip_of(ax), summary.max.reshape(2, 1000, 3).mean(axis=-1))
    assert ax.get_xlabel() == "query (means of 3 each)"
    assert ax.get_images()[0].get_extent() == [-0.5, 2999.5, 1.5, -0.5]


def ticks_of(axis):
    """Return the texts along an axis, by position; long axes do not show all of them."""
    axis.get_figure().canvas.draw()
    low, high = sorted(axis.get_view_interval())
    return {
        round(at): axis.get_major_formatter()(at, 0)
        for at in axis.get_majorticklocs()
        if low <= at <= high
    }


def test_layers_and_heads_stay_two_axes(pyplot):
    summary = summary_of(3, 6, batch=(2,))
    fields = ("entropy", "previous_token", "induction")
    panels = regard.plot.statistics(summary, list("abcdef"), fields=fields)
    np.testing.assert_allclose(strip_of(panels["entropy"]), summary.entropy.reshape(6, 6))
    for name in ("previous_token", "induction"):
        np.testing.assert_allclose(strip_of(panels[name]), getattr(summary, name))
        assert panels[name].get_xlabel() == "head"
        assert panels[name].get_ylabel() == "layer"
        assert ticks_of(panels[name].yaxis) == {0: "0", 1: "1"}
    assert panels["entropy"].get_ylabel() == "layer.head"
    assert ticks_of(panels["entropy"].xaxis) == dict(enumerate("abcdef"))
    labels = ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]
    shown = ticks_of(panels["entropy"].yaxis)
    assert shown
    assert all(labels[at] == text for at, text in shown.items())


def test_names_of_layers_and_heads(pyplot):
    summary = summary_of(2, 6, batch=(2,))
    names = {"layers": ["first", "last"], "heads": ["x", "y"]}
    panels = regard.plot.statistics(summary, fields=("max", "induction"), names=names)
    assert ticks_of(panels["induction"].yaxis) == {0: "first", 1: "last"}
    assert ticks_of(panels["induction"].xaxis) == {0: "x", 1: "y"}
    assert ticks_of(panels["max"].yaxis) == dict(
        enumerate(["first.x", "first.y", "last.x", "last.y"])
    )
    summary = summary_of(2, 6)
    ax = regard.plot.statistics(summary, fields="max", names={"heads": ["x", "y"]})["max"]
    assert ticks_of(ax.yaxis) == {0: "x", 1: "y"}


RNG = np.random.default_rng(0)
QUERY, KEY = RNG.standard_normal((2, 2, 4, 6, 8))
OPTIONS = [{"is_causal": True}, {"window": (1, 1)}]
TOKENS = list("abcdef")


def recording(batch=()):
    return regard.Recording(
        regard.RecordedLayer(
            f"layer {number}",
            np.broadcast_to(query, (*batch, *query.shape)),
            np.broadcast_to(key, (*batch, *key.shape)),
            query_tokens=TOKENS,
            key_tokens=TOKENS,
            **options,
        )
        for number, (query, key, options) in enumerate(zip(QUERY, KEY, OPTIONS, strict=True))
    )


def pixels(image):
    return np.asarray(image.get_array())


@pytest.mark.parametrize("batch", [(), (1,)])
def test_one_head(batch):
    for number, options in enumerate(OPTIONS):
        wanted = regard.plot.attention(
            (QUERY[number], KEY[number]), TOKENS, head=2, ax=Figure().subplots(), **options
        )
        for argument, head in ((recording(batch), (number, 2)), (recording(batch)[number], 2)):
            image = regard.plot.attention(argument, head=head, ax=Figure().subplots(), threads=1)
            assert np.array_equal(pixels(image), pixels(wanted))
            labels = [
                [each.get_text() for each in x.axes.get_xticklabels()] for x in (image, wanted)
            ]
            assert labels[0] == labels[1] == TOKENS


def test_all_heads():
    images = regard.plot.heads(recording(), figure=Figure())
    assert len(images) == 8
    for number, image in enumerate(images):
        layer, head = divmod(number, 4)
        wanted = recording().map(layer, head)
        assert np.array_equal(pixels(image), wanted)


def test_two_recordings():
    image = regard.plot.compare(recording()[0], recording()[1], head=1, ax=Figure().subplots())
    assert np.allclose(pixels(image), recording().map(0, 1) - recording().map(1, 1), atol=1e-15)


def test_two_heads_of_a_recording():
    ax = Figure().subplots()
    image = regard.plot.compare(recording(), head=(0, 3), other_head=(1, -4), ax=ax)
    assert np.allclose(pixels(image), recording().map(0, 3) - recording().map(1, 0), atol=1e-15)
    assert image.colorbar.ax.get_ylabel() == "weight, head 0, 3 − head 1, 0"
