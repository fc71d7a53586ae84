"""What a browser draws is what NumPy computes."""

import io

import numpy as np
import pytest

import regard
from explorer_pages import Page, alike, drawn, indices, press, problem, settled
from regard._explore._colors import diverging, sequential

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_pixels_are_the_blocks(opened, pooled, reduce):
    page = opened(pooled.path, f"#h=2&m={reduce}&q=0")
    levels = pooled.map(0, 2)[reduce].astype(int)
    outside = np.ones((64, 64), bool)
    outside[0] = outside[1] = False
    outside[12:18, 7:14] = False  # the region
    alike(drawn(page, 64, 64)[outside], sequential("light"), levels[outside])


def test_regions_are_drawn_exactly(opened, pooled):
    page = opened(pooled.path, "#h=1&v=100,130,60,100&q=0")
    weights = pooled.map(0, 1)["region 100 130 60 100"]
    # Borders of the region have a dashed line.
    alike(drawn(page, 30, 40)[1:-1, 1:-1], sequential("light"), indices(weights)[1:-1, 1:-1])


def test_top_keys_are_drawn_where_they_are_when_blocks_are_large(opened, pooled):
    page = opened(pooled.path, "#h=1&v=300,320,300,320&q=0&k=-1")
    rows = pooled.rows(0, 1)
    colors = drawn(page, 20, 20)
    for query in range(300, 320):
        keys = (rows["top_keys"][:, query].astype(int) + query) % 2**16
        for key, weight in zip(keys, rows["top_weights"][:, query], strict=True):
            if 300 <= key < 320:
                wanted = sequential("light")[indices(np.array([weight]))[0]].astype(int)
                assert np.abs(colors[query - 300, key - 300] - wanted).max() <= 6


def test_a_difference_is_one_head_minus_the_other(opened, exact):
    page = opened(exact.path, "#l=0&h=1&c=1.2&q=39")
    first, second = (exact.map(*place)["weights"].astype(float) for place in ((0, 1), (1, 2)))
    gap = first - second
    share = np.clip((np.log10(np.clip(np.abs(gap), 1e-4, 1)) + 4) / 4, 0, 1)
    wanted = 127 + (np.rint(127 * share) * np.sign(gap)).astype(int)
    inside = np.arange(40) != 39
    alike(drawn(page, 40, 40)[inside], diverging("light"), wanted[inside])
    assert page.inner_text("#head-title") == "Layer 0, head 1 minus layer 1, head 2"


def test_thumbnails_are_the_levels(opened, pooled):
    page = opened(pooled.path)
    levels = pooled.arrays("thumbnails", pooled.facts["overview"])["levels"]
    found = page.evaluate(
        "[...document.querySelectorAll('.cell canvas')].map(c => "
        "[...c.getContext('2d').getImageData(0, 0, 64, 64).data])"
    )
    for number, pixels in enumerate(found):
        colors = np.array(pixels).reshape(64, 64, 4)[..., :3]
        assert np.array_equal(colors, sequential("light")[levels[2 * number]])


def test_high_resolution_screens_have_all_pixels(opened, pooled):
    page = opened(pooled.path, device_scale_factor=2)
    width = page.evaluate("document.getElementById('picture').width")
    assert width == pytest.approx(2 * page.locator("#picture").bounding_box()["width"], abs=2)


def test_nan_has_its_color_and_its_words(opened, tmp_path):
    query, key = problem(heads=1, kv_heads=1)
    query[0, 5] = np.nan
    page = opened(Page(regard.explore(query, key), tmp_path).path, "#q=5")
    assert "not numbers" in page.inner_text("#row-summary")
    page = opened(tmp_path / "page.html", "#q=0")
    assert (drawn(page, 40, 40)[5] == sequential("light")[255]).all()


def test_screenshots_differ_between_heads(opened, exact):
    """A canvas that stays empty has no errors either."""
    image = pytest.importorskip("PIL.Image", reason="pip install 'regard[plot]'")
    page, pictures = opened(exact.path), []
    for _ in range(2):
        shot = page.locator("#picture").screenshot()
        pictures.append(np.asarray(image.open(io.BytesIO(shot)).convert("L"), int))
        press(page, "h")
    assert pictures[0].std() > 10
    assert np.abs(pictures[0] - pictures[1]).mean() > 1


RECORD = """() => {
    const own = CanvasRenderingContext2D.prototype.fillText;
    window.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
        const { width } = this.measureText(text);
        const left = x - { left: 0, center: width / 2, right: width }[this.textAlign];
        window.written.push([this.canvas.id, String(text), left, left + width,
            this.canvas.clientWidth]);
        return own.call(this, text, x, y);
    };
}"""


def test_numbers_of_legends_and_charts_are_whole(opened, tmp_path):
    """A number that is cut off reads as another one."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 3, 1, 8))
    key = np.tile(key, (1, 900, 1)) + 0.5 * rng.standard_normal((3, 900, 8))
    mask = np.where(np.arange(900) == 7, 0, -42.0)
    key[2, 7], mask = 0, np.broadcast_to(mask, (3, 1, 900)) * [[[0]], [[0]], [[1]]]
    explorer = regard.explore(query, key, mask)
    page = opened(Page(explorer, tmp_path).path)
    page.evaluate(RECORD)
    for head in range(3):
        for fragment in ("m=mean&s=linear", "s=linear", "m=mean", f"s=linear&c=0.{(head + 1) % 3}"):
            page.evaluate(f"location.hash = 'h={head}&{fragment}'")
            page.wait_for_timeout(50)
            settled(page)
    written = page.evaluate("window.written")
    labels = {text for name, text, *_ in written if name == "legend"}
    assert len(labels) > 20
    assert any("e−" in text for name, text, *_ in written if name.endswith("chart"))
    ids = "legend", "head-chart", "query-chart", "key-chart"
    cut = [each for each in written if each[0] in ids and not 0 <= each[2] <= each[3] <= each[4]]
    assert cut == []
