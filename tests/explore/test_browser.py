"""A page in a browser is drawn, shows tokens as text, and keeps the rules of axe-core (of the npm
package axe-core) in every view, light and dark."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import regard
from explorer_pages import Page, alike, drawn, indices, problem, settled
from regard._show.colors import sequential

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
