"""A browser shows every weight of a page that is served."""

import itertools

import numpy as np
import pytest

import regard
from explorer_pages import drawn, indices, problem, settled, weights_of
from regard._show.colors import diverging, sequential

pytestmark = pytest.mark.slow

LENGTH = 1500
QUERY, KEY = problem(LENGTH, LENGTH)
WEIGHTS = weights_of(QUERY, KEY, is_causal=True)
TABLE = sequential("light")


@pytest.fixture(scope="module")
def server():
    explorer = regard.explore(QUERY, KEY, is_causal=True, detail=32, top_k=1, tile_bytes=0)
    with explorer.serve() as running:
        yield running


@pytest.fixture
def shown(opened, server):
    def shows(fragment):
        page = opened(server.url, fragment)
        answered(page)
        return page

    return shows


def answered(page):
    for _ in range(400):
        settled(page)
        if page.get_attribute("html", "data-requests") == "answered":
            break
        page.wait_for_timeout(50)
    settled(page)
    assert page.get_attribute("html", "data-requests") == "answered"


@pytest.mark.parametrize(("first", "first_key"), [(0, 0), (700, 300), (1440, 1440), (1300, 20)])
def test_single_weights_are_drawn_everywhere(shown, first, first_key):
    rows, columns = 60, 50
    view = f"v={first},{first + rows},{first_key},{first_key + columns}"
    page = shown(f"#h=2&q=0&k=-1&{view}")
    part = WEIGHTS[2, first : first + rows, first_key : first_key + columns]
    inside = slice(1, None) if first == 0 else slice(None)
    colors, wanted = drawn(page, rows, columns)[inside], indices(part)[inside]
    away = [
        np.abs(colors - TABLE[np.clip(wanted + step, 0, 254)].astype(int)).max(axis=-1)
        for step in (-1, 0, 1)
    ]
    # Tiles have 8 significant bits of a weight, and a color spans 5.6 %.
    assert np.min(away, axis=0).max() == 0
    assert np.mean(away[1] == 0) > 0.9
    assert page.inner_text("#pixels").startswith("Pixels: ")


def test_the_chosen_weight_is_read_at_any_zoom(shown):
    page = shown("#h=1&q=1200&k=77")
    weight = float(page.inner_text("#readout").rpartition(": weight ")[2].replace("−", "-"))
    assert weight == pytest.approx(WEIGHTS[1, 1200, 77], rel=0.06)


@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_blocks_are_finer_than_the_picture(shown, reduce):
    page = shown(f"#h=3&q=0&k=-1&m={reduce}")
    *_, width, height = map(float, page.get_attribute("#picture", "data-plot").split())
    side = 256  # a level of 4 x 4 tiles
    assert 256 <= min(width, height) < 1024
    edges = np.arange(side + 1) * LENGTH // side
    pooled = np.array(
        [
            [getattr(np, reduce)(WEIGHTS[3, a:b, c:d]) for c, d in itertools.pairwise(edges)]
            for a, b in itertools.pairwise(edges)
        ]
    )
    sampled = drawn(page, side, side)[2:]
    away = np.abs(sampled - TABLE[indices(pooled)[2:]].astype(int)).max(axis=-1)
    # Pixels of the screen that two blocks share have the color of one of them.
    assert np.mean(away <= 12) > 0.7


def test_a_difference_is_computed_from_both_heads(shown):
    page = shown("#h=1&c=0.2&q=0&k=-1&v=900,940,500,540")
    gap = WEIGHTS[1, 900:940, 500:540] - WEIGHTS[2, 900:940, 500:540]
    share = np.clip((np.log10(np.clip(np.abs(gap), 1e-4, 1)) + 4) / 4, 0, 1)
    wanted = 127 + np.rint(127 * share) * np.sign(gap)
    table = diverging("light").astype(int)
    away = np.abs(drawn(page, 40, 40) - table[wanted.astype(int)]).max(axis=-1)
    assert np.mean(away <= 8) > 0.95


def test_a_server_that_is_gone_is_said_to_be(chromium):
    with regard.explore(QUERY, KEY, is_causal=True, detail=32, top_k=1).serve() as server:
        page = chromium.new_page()
        page.goto(server.url)
        answered(page)
    page.keyboard.press("+")
    page.locator("#trouble").wait_for(state="visible")
    assert "the server of this page does not answer" in page.inner_text("#trouble")
    assert page.locator("#picture").is_visible()
    page.close()
