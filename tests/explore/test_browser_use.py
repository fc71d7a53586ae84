"""A page in a browser: what is read, typed, heard and remembered."""

import numpy as np
import pytest

import regard
from explorer_pages import address, press, problem, settled

pytestmark = pytest.mark.slow


def test_a_row_says_its_top_keys(opened, exact):
    page = opened(exact.path, "#l=1&h=2&q=17")
    weights = exact.map(1, 2)["weights"][17].astype(float)
    keys = np.argsort(-weights, kind="stable")[:8]
    cells = page.locator("#top-keys tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert [int(row[0]) for row in cells] == keys.tolist()
    assert "word" in cells[0][1]
    for row, key in zip(cells, keys, strict=True):
        assert float(row[2].replace("−", "-")) == pytest.approx(weights[key], rel=6e-3)
    assert page.inner_text("#row-title") == "Query 17 “ word8”"
    share = 100 * weights[keys].sum()
    assert f"{share:.2g} % of its weight" in page.inner_text("#row-summary")
    assert page.locator("#arcs path").count() == 8
    assert page.locator("#text span").count() == 40


def test_a_largest_weight_is_never_called_the_weight(opened, pooled):
    page = opened(pooled.path, "#q=400&k=3&h=1")
    for reduce, says in (("max", "largest weight of the block"), ("mean", "mean weight of")):
        page.select_option("#reduce", reduce)
        settled(page)
        readout = page.inner_text("#readout")
        assert says in readout
        keys = page.locator("#top-keys button").all_inner_texts()
        assert ("; weight" in readout) == ("3" in keys)
    assert page.get_attribute("#picture", "aria-label").startswith("Picture of the mean weight of")


def test_the_keyboard_reaches_everything(opened, exact):
    page = opened(exact.path)
    press(page, "Home", "ArrowDown", "Shift+ArrowDown")
    assert address(page) == {"q": "11"}
    press(page, "ArrowRight", "Shift+ArrowRight", "ArrowLeft")
    assert address(page) == {"q": "11", "k": "9"}
    press(page, "t", "t", "h", "l", "s")
    assert address(page)["h"] == "1"
    assert address(page)["l"] == "1"
    assert address(page)["s"] == "linear"
    top = page.locator("#top-keys tr[aria-current]")
    press(page, "t")
    assert top.count() == 1
    press(page, "+", "+")
    view = [float(x) for x in address(page)["v"].split(",")]
    assert view[1] - view[0] == pytest.approx(10)
    assert view[0] <= 11 < view[1]
    press(page, "-", "0")
    assert "v" not in address(page)
    press(page, "c", "h")
    assert address(page)["c"] == "1.1"
    assert "minus" in page.inner_text("#head-title")
    press(page, "Escape", "H", "L")
    assert "c" not in address(page)
    press(page, "?")
    assert page.locator("#help").evaluate("dialog => dialog.open")
    assert page.locator("#keys tr").count() == 16
    press(page, "Escape")
    assert not page.locator("#help").evaluate("dialog => dialog.open")
    press(page, "p")
    assert page.evaluate("document.activeElement.id") == "picture"


def test_the_grid_of_heads_has_one_stop_and_arrows(opened, exact):
    page = opened(exact.path)
    assert page.locator("#grid [tabindex='0']").count() == 1
    press(page, "g", "ArrowRight", "ArrowRight", "ArrowDown")
    assert address(page) == {"l": "1", "h": "2"}
    assert page.locator("#grid [tabindex='0']").count() == 1
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("layer 1, head 2: entropy (nats) ")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    press(page, "Home", "ArrowUp", "End")
    assert address(page) == {"l": "1", "h": "3"}


def test_tokens_are_found(opened, exact):
    page = opened(exact.path)
    press(page, "/", *"WORD3")
    assert page.inner_text("#found") == "5 of 40 keys"
    assert page.locator("#matches button").count() == 5
    press(page, "Enter", "Enter")
    assert address(page)["k"] == address(page)["q"] == "12"
    press(page, "Shift+Enter", "Shift+Enter")
    assert address(page)["k"] == "39"  # from the first to the last
    press(page, "Escape")
    assert "f" not in address(page)


def test_the_address_brings_everything_back(opened, exact):
    fragment = "#l=1&h=2&q=20&k=4&v=10,30,0,20&s=linear&c=0.3&t=mean_distance&w=first_mass&f=word4"
    page = opened(exact.path, fragment)
    titles, table = page.inner_text("#head-title"), page.inner_text("#top-keys")
    assert page.input_value("#query") == "20"
    assert page.input_value("#key") == "4"
    assert page.input_value("#scale") == "linear"
    assert page.input_value("#query-statistic") == "mean_distance"
    assert page.input_value("#head-statistic") == "first_mass"
    assert page.input_value("#find") == "word4"
    again = opened(exact.path, page.evaluate("location.hash"))
    assert again.inner_text("#head-title") == titles
    assert again.inner_text("#top-keys") == table
    page.evaluate("location.hash = '#q=3'")
    settled(page)
    assert page.input_value("#query") == "3"
    assert page.inner_text("#head-title") == "Layer 0, head 0"


@pytest.mark.parametrize(
    "fragment", ["#l=99&h=99&q=99&k=99", "#q=-5&h=x&v=a,b", "#v=0,0,0,0&c=9.9&t=no&m=%00", "#%"]
)
def test_any_address_shows_something(opened, exact, fragment):
    page = opened(exact.path, fragment)
    assert page.locator("#trouble").is_hidden()
    assert page.locator("#top-keys tbody tr").count()


def test_pointers_choose_zoom_and_move(opened, exact):
    page = opened(exact.path)
    left, top, width, height = map(float, page.get_attribute("#picture", "data-plot").split())
    box = page.locator("#picture").bounding_box()
    x = box["x"] + left + (5.5 / 40) * width
    y = box["y"] + top + (8.5 / 40) * height
    page.mouse.move(x, y)
    assert page.inner_text("#readout").startswith("Query 8 “ word8”, key 5 “ word5”: weight ")
    page.mouse.click(x, y)
    settled(page)
    assert address(page) == {"q": "8", "k": "5"}
    page.mouse.wheel(0, -300)
    settled(page)
    before = [float(part) for part in address(page)["v"].split(",")]
    assert before[1] - before[0] < 40
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 40, y - 40, steps=4)
    page.mouse.up()
    settled(page)
    after = [float(part) for part in address(page)["v"].split(",")]
    assert after[0] > before[0]
    assert address(page)["q"] == "8"


def test_a_notebook_shows_it_in_a_sandbox(chromium, exact):
    query, key = problem()
    shown = regard.explore(query, key)._repr_html_()
    page = chromium.new_page()
    wrong = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_content(f"<!doctype html><body>{shown}</body>")
    frame = page.frame_locator("iframe")
    frame.locator("html[data-overview]").wait_for(state="attached")
    frame.locator("#top-keys tbody tr").first.wait_for()
    frame.locator("#picture").click()
    assert frame.locator("#trouble").is_hidden()
    page.close()
    assert wrong == []
