"""A page in a browser draws what NumPy computes, shows tokens as text, and keeps the rules of the
npm package axe-core in every view, light and dark."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import regard
from explorer_pages import Page, alike, drawn, indices, problem, settled
from regard._show.colors import diverging, sequential

HOSTILE = [
    "</script><img src=x onerror=\"document.title='hacked'\">",
    "line\nbreak\ttab",
    "שלום",
    "\u202eflipped",
    "x" * 5000,
    "",
    "\ud800",
]


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_pixels_are_the_weights(opened, exact, theme):
    page = opened(exact.path, "#l=1&h=3&q=39", color_scheme=theme)
    colors = drawn(page, 40, 40)
    weights = exact.map(1, 3)["weights"]
    inside = np.arange(40) != 39  # the chosen query has a frame
    alike(colors[inside], sequential(theme), indices(weights)[inside])


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.slow
def test_pixels_are_the_blocks(opened, pooled, reduce):
    page = opened(pooled.path, f"#h=2&m={reduce}&q=0")
    levels = pooled.map(0, 2)[reduce].astype(int)
    outside = np.ones((64, 64), bool)
    outside[0] = outside[1] = False
    outside[12:18, 7:14] = False  # the region
    alike(drawn(page, 64, 64)[outside], sequential("light"), levels[outside])


@pytest.mark.slow
def test_regions_are_drawn_exactly(opened, pooled):
    page = opened(pooled.path, "#h=1&v=100,130,60,100&q=0")
    weights = pooled.map(0, 1)["region 100 130 60 100"]
    # Borders of the region have a dashed line.
    alike(drawn(page, 30, 40)[1:-1, 1:-1], sequential("light"), indices(weights)[1:-1, 1:-1])


@pytest.mark.slow
def test_a_difference_is_one_head_minus_the_other(opened, exact):
    page = opened(exact.path, "#l=0&h=1&c=1.2&q=39")
    first, second = (exact.map(*place)["weights"].astype(float) for place in ((0, 1), (1, 2)))
    gap = first - second
    share = np.clip((np.log10(np.clip(np.abs(gap), 1e-4, 1)) + 4) / 4, 0, 1)
    wanted = 127 + (np.rint(127 * share) * np.sign(gap)).astype(int)
    inside = np.arange(40) != 39
    alike(drawn(page, 40, 40)[inside], diverging("light"), wanted[inside])
    assert page.inner_text("#head-title") == "Layer 0, head 1 minus layer 1, head 2"


@pytest.mark.slow
def test_nan_has_its_color_and_its_words(opened, tmp_path):
    query, key = problem(heads=1, kv_heads=1)
    query[0, 5] = np.nan
    page = opened(Page(regard.explore(query, key), tmp_path).path, "#q=5")
    assert "not numbers" in page.inner_text("#row-summary")
    page = opened(tmp_path / "page.html", "#q=0")
    assert (drawn(page, 40, 40)[5] == sequential("light")[255]).all()


def tiles_of_kind(page, head, is_exact):
    return [each for each in page.tiles(0, head) if ("weights" in each[1]) == is_exact]


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_hostile_tokens_are_text(opened, tmp_path):
    query, key = problem(q_len=7, kv_len=7)
    names = {"layers": ["<i>one</i>"], "heads": ["<img src=x>", "b", "c", "d"]}
    explorer = regard.explore(query, key, tokens=HOSTILE, names=names)
    page = opened(Page(explorer, tmp_path).path, "#q=0&f=%3C")
    assert page.title() == "Attention, explored"
    assert page.locator("main img, main i, #row b b").count() == 0
    assert "</script><img" in page.inner_text("#row-title")
    assert page.locator("#matches button").count() == 1
    for query in range(7):
        page.fill("#query", str(query))
        page.keyboard.press("Enter")
        settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


VIEWS = {
    "head": ("exact", "#l=1&h=2&q=30&k=20", None),
    "linear": ("exact", "#s=linear&q=39", None),
    "search": ("exact", "#l=1&f=word3&q=30", None),
    "comparison": ("exact", "#l=1&h=1&c=0.2&q=20&k=3", None),
    "help": ("exact", "", "?"),
    "grid": ("exact", "#l=1&h=3", "g"),
    "blocks": ("pooled", "#h=2&m=mean&q=300&k=100", None),
    "region": ("pooled", "#h=1&v=80,160,40,120&q=110&k=70", None),
    "tiles": ("tiled", "#h=1&v=60,260,0,200&q=130&k=70", None),
    "no number": ("broken", "#q=5&k=2", None),
}


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """Return the program axe-core: of the file that AXE_CORE names, or from npm."""
    given = os.environ.get("AXE_CORE")
    if given:
        return Path(given).read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, and AXE_CORE names no axe.min.js")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install axe-core: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    """Return a page with NaN, a query without keys, and names instead of numbers."""
    query, key = problem(layers=(2,))
    query[0, 0, 5] = np.nan
    names = {"layers": ["first", "last"], "heads": ["a", "b", "c", "d"]}
    mask = np.arange(40)[:, None] != 7
    explorer = regard.explore(query, key, np.broadcast_to(mask, (40, 40)), names=names)
    return Page(explorer, tmp_path_factory.mktemp("broken"))


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_rule_is_broken(opened, axe, request, view, theme):
    page_name, fragment, key = VIEWS[view]
    path = request.getfixturevalue(page_name).path
    page = opened(path, fragment, color_scheme=theme, bypass_csp=True)
    if key:
        page.keyboard.press(key)
        settled(page)
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations', 'passes'] })")
    assert len(found["passes"]) > 15
    broken_rules = {
        rule["id"]: [node["target"] for node in rule["nodes"]][:3] for rule in found["violations"]
    }
    assert broken_rules == {}
