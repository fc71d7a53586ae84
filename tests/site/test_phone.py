"""Test the style of the site on the screen of a phone, in a browser."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
STYLE = (DOCS / "_static" / "site.css").read_text(encoding="utf-8")
DRAWINGS = sorted(DOCS.rglob("*.svg"))
WIDTH = 420


def test_every_drawing_shrinks_to_the_screen(chromium):
    figures = [
        f"<figure class='drawing'>{path.read_text(encoding='utf-8')}</figure>" for path in DRAWINGS
    ]
    assert len(figures) > 20
    page = chromium.new_page(viewport={"width": WIDTH, "height": 800})
    page.set_content(
        f"<style>body {{ margin: 0 }} {STYLE}</style>"
        f"<article class='bd-article'>{''.join(figures)}</article>"
    )
    boxes = page.evaluate(
        """() => [...document.querySelectorAll("figure > svg")].map((svg) => {
            const { left, right, width, height } = svg.getBoundingClientRect();
            const { width: inside, height: high } = svg.viewBox.baseVal;
            return [left, right, (width * high) / (height * inside)];
        })"""
    )
    page.close()
    assert len(boxes) == len(DRAWINGS)
    for path, (left, right, ratio) in zip(DRAWINGS, boxes, strict=True):
        assert 0 <= left < right <= WIDTH, path.name
        assert ratio == pytest.approx(1, abs=0.02), path.name
