"""What a browser draws is what NumPy computes."""

import numpy as np
import pytest

import regard
from explorer_pages import Page, alike, drawn, indices, problem
from regard._show.colors import diverging, sequential

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


def test_a_difference_is_one_head_minus_the_other(opened, exact):
    page = opened(exact.path, "#l=0&h=1&c=1.2&q=39")
    first, second = (exact.map(*place)["weights"].astype(float) for place in ((0, 1), (1, 2)))
    gap = first - second
    share = np.clip((np.log10(np.clip(np.abs(gap), 1e-4, 1)) + 4) / 4, 0, 1)
    wanted = 127 + (np.rint(127 * share) * np.sign(gap)).astype(int)
    inside = np.arange(40) != 39
    alike(drawn(page, 40, 40)[inside], diverging("light"), wanted[inside])
    assert page.inner_text("#head-title") == "Layer 0, head 1 minus layer 1, head 2"


def test_nan_has_its_color_and_its_words(opened, tmp_path):
    query, key = problem(heads=1, kv_heads=1)
    query[0, 5] = np.nan
    page = opened(Page(regard.explore(query, key), tmp_path).path, "#q=5")
    assert "not numbers" in page.inner_text("#row-summary")
    page = opened(tmp_path / "page.html", "#q=0")
    assert (drawn(page, 40, 40)[5] == sequential("light")[255]).all()


def tiles_of_kind(page, head, is_exact):
    return [each for each in page.tiles(0, head) if ("weights" in each[1]) == is_exact]


def test_a_tile_is_drawn_when_the_page_is_zoomed_in(opened, tiled):
    """Single weights have their colors, and what is around them is pale or has no weight."""
    (first, end, first_key, end_key), planes = tiles_of_kind(tiled, 1, True)[0]
    view = f"v={first},{end},{first_key},{end_key}"
    page = opened(tiled.path, f"#h=1&q=0&{view}")
    rows, columns = planes["weights"].shape
    alike(drawn(page, rows, columns), sequential("light"), indices(planes["weights"]))
    assert "single weights" in page.inner_text("#pixels")
    query, key = first + 5, first_key + 7
    page = opened(tiled.path, f"#h=1&q={query}&k={key}&{view}")
    weight = float(page.inner_text("#readout").rpartition(": weight ")[2].replace("−", "-"))
    assert weight == pytest.approx(planes["weights"][5, 7], rel=0.05)


def test_a_tile_of_blocks_is_drawn_between(opened, tiled):
    exact = {tuple(bounds) for bounds, _ in tiles_of_kind(tiled, 0, True)}

    def has_exact(bounds):
        a, b, c, d = bounds
        return any(e < b and f > a and g < d and h > c for e, f, g, h in exact)

    # On the finest level of blocks without single weights over it.
    kinds = [each for each in tiles_of_kind(tiled, 0, False) if not has_exact(each[0])]
    bounds, planes = min(kinds, key=lambda each: each[0][1] - each[0][0])
    for reduce in ("max", "mean"):
        view = ",".join(map(str, bounds))
        page = opened(tiled.path, f"#q=0&m={reduce}&v={view}&k={bounds[2]}")
        colors = sequential("light")[planes[reduce]]
        found = drawn(page, *planes[reduce].shape)
        assert "Pale: blocks" in page.inner_text("#pixels")
        near = np.abs(found - (0.35 * colors + 0.65 * 255)).max(axis=-1) <= 2
        assert np.mean(near) > 0.9  # the others have a query's top key
