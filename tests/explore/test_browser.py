"""A page in a browser: that it is drawn, and that tokens are text."""

import numpy as np
import pytest

import regard
from explorer_pages import Page, alike, drawn, indices, problem, settled
from regard._show.colors import sequential

HOSTILE = [
    "</script><img src=x onerror=\"document.title='hacked'\">",
    "<b>bold</b>",
    "line\nbreak\ttab",
    "👩‍👩‍👧",
    "שלום",
    "\u202eflipped",
    "x" * 5000,
    "",
    "\ud800",
    "&lt;",
]


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pixels_are_the_weights(opened, exact, theme):
    page = opened(exact.path, "#l=1&h=3&q=39", color_scheme=theme)
    colors = drawn(page, 40, 40)
    weights = exact.map(1, 3)["weights"]
    inside = np.arange(40) != 39  # the chosen query has a frame
    alike(colors[inside], sequential(theme), indices(weights)[inside])


def test_hostile_tokens_are_text(opened, tmp_path):
    query, key = problem(q_len=10, kv_len=10)
    names = {"layers": ["<i>one</i>"], "heads": ["<img src=x>", "b", "c", "d"]}
    explorer = regard.explore(query, key, tokens=HOSTILE, names=names)
    page = opened(Page(explorer, tmp_path).path, "#q=0&f=%3C")
    assert page.title() == "Attention, explored"
    assert page.locator("main img, main i, #row b b").count() == 0
    assert "</script><img" in page.inner_text("#row-title")
    assert page.locator("#matches button").count() == 2
    for query in range(10):
        page.fill("#query", str(query))
        page.keyboard.press("Enter")
        settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
