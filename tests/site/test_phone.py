"""Test the style of the site on the screen of a phone, in a browser."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
STYLE = (DOCS / "_static" / "site.css").read_text(encoding="utf-8")
DRAWINGS = sorted(DOCS.rglob("*.svg"))
WIDTH = 420


@pytest.fixture
def phone(chromium):
    page = chromium.new_page(viewport={"width": WIDTH, "height": 800})
    yield (
        lambda body: (
            page.set_content(
                "<style>:root { --pst-color-surface: #eee; --pst-color-text-base: #000 }"
                f"body {{ margin: 0 }} {STYLE}</style><article class='bd-article'>{body}</article>"
            )
            or page
        )
    )
    page.close()


def test_every_drawing_shrinks_to_the_screen(phone):
    figures = [
        f"<figure class='drawing'>{path.read_text(encoding='utf-8')}</figure>" for path in DRAWINGS
    ]
    assert len(figures) > 20
    boxes = phone("".join(figures)).evaluate(
        """() => [...document.querySelectorAll("figure > svg")].map((svg) => {
            const { left, right, width, height } = svg.getBoundingClientRect();
            const { width: inside, height: high } = svg.viewBox.baseVal;
            return [left, right, (width * high) / (height * inside)];
        })"""
    )
    assert len(boxes) == len(DRAWINGS)
    for path, (left, right, ratio) in zip(DRAWINGS, boxes, strict=True):
        assert 0 <= left < right <= WIDTH, path.name
        assert ratio == pytest.approx(1, abs=0.02), path.name


def test_a_shadow_shows_that_code_scrolls(phone):
    code = "<div class='highlight'><pre style='overflow: auto; height: 4em'>{}\n\n</pre></div>"
    page = phone(code.format("short") + code.format("long " * 100))

    def edge(number):
        box = page.locator("pre").nth(number).bounding_box()
        corner = {"x": box["x"] + box["width"] - 12, "y": box["y"] + box["height"] / 2}
        return page.screenshot(clip={**corner, "width": 12, "height": 4})

    assert edge(0) != edge(1)
    page.locator("pre").nth(1).evaluate("pre => { pre.scrollLeft = pre.scrollWidth; }")
    assert edge(0) == edge(1)
