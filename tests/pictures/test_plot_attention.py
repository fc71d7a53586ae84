"""Test pictures of weights.

Arrays, positions and colors of pixels are compared with NumPy's. There are no reference images,
because other versions of matplotlib set text differently.
"""

import numpy as np
import pytest

import regard
from regard._show.colors import diverging, sequential

pytest.importorskip("matplotlib")

rng = np.random.default_rng(0)
QUERY = rng.standard_normal((2, 4, 6, 8))
KEY = rng.standard_normal((2, 2, 9, 8))
OPTIONS = {
    "causal": {"is_causal": True},
    "end": {"is_causal": True, "query_offset": "end", "key_lengths": [9, 7]},
    "window": {"window": (2, 1), "query_offset": [1, 3]},
    "padding": {"left_padding": [0, 2], "scale": 0.3},
    "alibi of entries": {"alibi_slopes": rng.random((2, 4))},
    "sinks": {"sinks": [0.5, -1.0, 2.0, -np.inf], "softcap": 2.0},
    "float mask": {"mask": rng.standard_normal((6, 9))},
    "pair": {"mask": (rng.random((2, 1, 6, 9)) > 0.3, rng.standard_normal((4, 1, 9)))},
}


def weights_of(query, key, mask=None, **options):
    value = key[..., :1]
    _, weights = regard.scaled_dot_product_attention(
        query, key, value, mask, return_weights=True, **options
    )
    return weights


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def drawn(image):
    return np.ma.filled(image.get_array(), np.nan)


@pytest.mark.parametrize("name", ["pair", *slow(*OPTIONS)])
def test_every_head_of_a_call_has_its_own_weights(pyplot, name):
    weights = weights_of(QUERY, KEY, **OPTIONS[name])
    ax = pyplot.figure().subplots()
    for head in np.ndindex(2, 4):
        image = regard.plot.attention(
            (QUERY, KEY), head=head, ax=ax, colorbar=False, **OPTIONS[name]
        )
        np.testing.assert_allclose(drawn(image), weights[head], rtol=1e-12, atol=1e-15)
    images = regard.plot.heads((QUERY, KEY), figure=pyplot.figure(), **OPTIONS[name])
    together = np.reshape([drawn(image) for image in images], weights.shape)
    np.testing.assert_allclose(together, weights, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("reduce", "label"),
    [("max", "largest weight"), ("mean", "mean weight"), ("sum", "sum of the weights")],
)
def test_many_weights_are_pooled_and_the_label_says_so(pyplot, reduce, label):
    query, key = rng.standard_normal((2, 3, 50, 4))
    weights = weights_of(query, key, is_causal=True)
    options = {"is_causal": True, "region": (slice(3, 35), slice(7, 50)), "shape": (9, 10)}
    image = regard.plot.attention((query, key), head=1, reduce=reduce, **options)
    rows, keys = 3 + np.arange(10) * 32 // 9, 7 + np.arange(11) * 43 // 10
    wanted = [
        [
            getattr(weights[1, rows[i] : rows[i + 1], keys[j] : keys[j + 1]], reduce)()
            for j in range(10)
        ]
        for i in range(9)
    ]
    np.testing.assert_allclose(drawn(image), wanted, rtol=1e-12)
    shown = " ".join(image.colorbar.ax.get_ylabel().split())
    assert shown == f"{label} of each 4 × 5 block"
    assert image.get_extent() == [6.5, 49.5, 34.5, 2.5]


def test_no_weight_is_lost_on_a_screen(pyplot):
    """A single large weight is visible in axes of any size; nearest sampling would skip most of
    them."""
    weights = np.full((3000, 3000), 1e-4)
    weights[1234, 2345] = 0.5
    for size in [(6.4, 4.8), (3, 2.2)]:
        ax = pyplot.figure(figsize=size, layout="constrained").subplots()
        image = regard.plot.attention(weights, ax=ax)
        assert drawn(image).max() == 0.5
        ax.figure.canvas.draw()
        box = ax.get_window_extent()
        height, width = image.get_array().shape
        assert height <= box.height
        assert width <= box.width
        pixels = np.asarray(ax.figure.canvas.buffer_rgba())
        brightest = (np.array(image.get_cmap()(image.norm(0.5))) * 255).round().astype(int)
        assert (np.abs(pixels.astype(int) - brightest).max(axis=-1) <= 1).sum() > 0


def test_pixels_have_the_colors_of_their_weights(pyplot):
    weights = regard.softmax(rng.standard_normal((5, 7)) * 2)
    weights[3], table = np.nan, sequential("light").astype(int)
    weights[1] = 0.05, 0.02, 1e-5, 1e-7, 0, 1e-3, 0.9
    ax = pyplot.figure(figsize=(4, 3), dpi=100).subplots()
    image = regard.plot.attention(weights, ax=ax)
    assert image.colorbar.ax.get_ylabel() == "weight (pink: NaN)"
    ax.figure.canvas.draw()
    pixels = np.asarray(ax.figure.canvas.buffer_rgba())
    for (query, key), weight in np.ndenumerate(weights):
        across, up = ax.transData.transform((key, query))
        found = pixels[len(pixels) - 1 - int(up), int(across)]
        level = 255 if np.isnan(weight) else round(254 * (np.log10(max(weight, 1e-6)) / 6 + 1))
        near = (
            table[[max(level - 1, 0), level, min(level + 1, 254)]] if level < 255 else table[255:]
        )
        assert np.abs(found[:3] - near).max(axis=-1).min() <= 1, (query, key)


@pytest.mark.parametrize(
    ("weights", "keywords", "limits"),
    [
        ([[0.25, 0.75]], {}, (1e-6, 1)),
        ([[0.25, 0.75]], {"vmax": 1e-7}, (1e-8, 1e-7)),
        ([[0.25, 0.75]], {"vmin": 0.1, "vmax": 0.2}, (0.1, 0.2)),
        ([[0.25, 0.75]], {"log": False}, (0, 0.75)),
        ([[0.0, 0.0]], {}, (1e-6, 1)),
        ([[0.0, 0.0]], {"log": False}, (0, 1)),
    ],
)
def test_limits(pyplot, weights, keywords, limits):
    image = regard.plot.attention(weights, **keywords)
    image.figure.canvas.draw()
    assert image.get_clim() == limits


def test_queries_stand_at_their_positions(pyplot):
    options = {"is_causal": True, "query_offset": "end"}
    image = regard.plot.attention(
        (QUERY, KEY), list("abcdefghi"), head=(0, 1), region=(slice(1, 5), slice(2, 9)), **options
    )
    assert image.get_extent() == [1.5, 8.5, 7.5, 3.5]
    assert image.axes.get_ylabel() == "query position"
    image.figure.canvas.draw()
    assert [label.get_text() for label in image.axes.get_yticklabels()] == list("efgh")
    assert [label.get_text() for label in image.axes.get_xticklabels()] == list("cdefghi")
    weights = weights_of(QUERY, KEY, **options)[0, 1]
    image = regard.plot.attention(weights, query_offset="end")
    assert image.get_extent() == [-0.5, 8.5, 8.5, 2.5]


def test_few_queries_have_the_first_tokens_unless_they_stand_elsewhere(pyplot):
    tokens = list("abcdefghi")

    def texts(image):
        image.figure.canvas.draw()
        return [label.get_text() for label in image.axes.get_yticklabels()]

    pair, head = (QUERY, KEY), (0, 1)
    assert texts(regard.plot.attention(pair, tokens, head=head)) == tokens[:6]
    assert texts(regard.plot.heads((QUERY[0], KEY[0]), tokens)[0]) == tokens[:6]
    weights = weights_of(QUERY, KEY)[head]
    assert texts(regard.plot.compare(weights, pair, tokens, head=head)) == tokens[:6]
    with pytest.raises(ValueError, match="one sequence for 6 queries and 9 keys"):
        regard.plot.attention(weights, tokens)
    image = regard.plot.attention(weights, tokens, query_offset=3)
    assert texts(image) == tokens[3:]


@pytest.mark.parametrize("draw", ["attention", "heads", "compare"])
def test_a_tuple_is_query_and_key_whatever_its_values(pyplot, draw):
    for e in (np.eye(4), regard.softmax(rng.standard_normal((4, 4)))):
        others = (np.zeros((4, 4)),) if draw == "compare" else ()
        image = np.ravel(getattr(regard.plot, draw)((e, e), *others))[0]
        np.testing.assert_allclose(drawn(image), weights_of(e, e), rtol=1e-12)


def test_heads_share_one_scale(pyplot):
    weights = regard.softmax(rng.standard_normal((3, 5, 6, 6)))
    images = regard.plot.heads(weights, list("abcdef"))
    assert len(images) == 15
    assert {image.get_clim() for image in images} == {(1e-6, 1)}
    places = [image.axes.get_subplotspec() for image in images]
    assert [(p.rowspan.start, p.colspan.start) for p in places] == list(np.ndindex(3, 5))
    assert [image.axes.get_title() for image in images[:2]] == ["head 0, 0", "head 0, 1"]
    assert len(images[0].figure.axes) == 16  # and one color bar
    images = regard.plot.heads(weights[0], names=["$a$", *"bcde"], columns=2, colorbar=False)
    assert images[0].axes.get_subplotspec().get_gridspec().get_geometry() == (3, 2)
    assert len(images[0].figure.axes) == 5


def test_differences_are_centered(pyplot):
    a, b = regard.softmax(rng.standard_normal((2, 20, 20)) * 3)
    image = regard.plot.compare(a, b, names=("before", "after"))
    np.testing.assert_array_equal(drawn(image), a - b)
    assert image.get_clim() == (-1, 1)
    share = np.clip(1 + np.log10(np.maximum(np.abs(a - b), 1e-4)) / 4, 0, 1) * np.sign(a - b)
    np.testing.assert_allclose(image.norm(a - b), 0.5 + share / 2, atol=1e-12)
    np.testing.assert_allclose(image.norm(image.norm.inverse([0, 0.3, 1])), [0, 0.3, 1])
    for place, is_orange in ((20, False), (234, True)):  # orange means more, as in the explorer
        color = image.get_cmap()(place / 254)[:3]
        np.testing.assert_allclose(color, diverging("light")[place] / 255)
        assert (color[0] > color[2]) == is_orange
    assert image.colorbar.ax.get_ylabel() == "weight, before − after"
    image = regard.plot.compare(a, b, shape=(4, 4), vmax=0.5, log=False)
    np.testing.assert_allclose(drawn(image), (a - b).reshape(4, 5, 4, 5).mean(axis=(1, 3)))
    assert image.get_clim() == (-0.5, 0.5)
    assert " ".join(image.colorbar.ax.get_ylabel().split()) == (
        "mean weight of each 5 × 5 block, a − b"
    )
    query, key = QUERY[:, :, :5], KEY[:, :, :5]
    image = regard.plot.compare((query, key), (query[:1], key[1:]), head=(0, 3), is_causal=True)
    wanted = weights_of(query, key, is_causal=True)[0, 3]
    wanted = wanted - weights_of(query[:1], key[1:], is_causal=True)[0, 3]
    np.testing.assert_allclose(drawn(image), wanted, atol=1e-14)


@pytest.mark.parametrize("layout", ["tight", "constrained", "compressed"])
def test_color_bars_fit(pyplot, layout):
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3), layout=layout)
    images = [regard.plot.attention(np.eye(9), ax=ax) for ax in axes]
    figure.canvas.draw()
    parts = [part for image in images for part in (image.axes, image.colorbar.ax)]
    edges = [x for part in parts for x in part.get_tightbbox().extents[::2]]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= figure.bbox.width


def test_given_axes_and_figures_are_the_only_ones(pyplot):
    figure = pyplot.figure()
    axes = figure.subplots(1, 2)
    image = regard.plot.attention(np.eye(3), ax=axes[1], colorbar=False)
    assert image.axes is axes[1]
    assert figure.axes == list(axes)
    regard.plot.pattern(q_len=3, is_causal=True, ax=axes[0])
    regard.plot.compare(np.eye(3), np.eye(3), ax=axes[0])
    parts = pyplot.figure(figsize=(14, 9), layout="constrained").subfigures(1, 2)
    images = regard.plot.heads(np.ones((2, 1, 1)), figure=parts[0])
    assert all(image.axes.get_figure(root=False) is parts[0] for image in images)
    regard.plot.statistics(regard.summarize_attention(QUERY, KEY), figure=parts[1])
    assert len(pyplot.get_fignums()) == 2
    parts[0].figure.canvas.draw()
