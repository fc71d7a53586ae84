"""The directive ``drawing``: a figure that a module of ``docs/figures`` draws for the site.

The module's function `draw` returns a matplotlib figure. Its SVG becomes a part of the page, so
that its ink has the color of the page's text.
"""

from __future__ import annotations

import html
import importlib
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FIGURES = Path(__file__).parent.parent / "figures"
IDENTIFIERS = re.compile(r'(?<= id=")|(?<=href="#)|(?<=url\(#)')
OPENING = re.compile(
    r'<svg [^>]*?width="(?P<points>[\d.]+)pt"[^>]*?(?P<view>viewBox="[^"]*")[^>]*>'
)
METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
PIXELS_OF_A_POINT = 4 / 3


def svg_of(name: str, alt: str) -> str:
    """Draw a figure, and return its SVG as a part of a page."""
    if str(FIGURES) not in sys.path:
        sys.path.insert(0, str(FIGURES))
    style = importlib.import_module("style")
    text = METADATA.sub("", style.svg(importlib.import_module(name).draw()))
    # Other drawings of the page have the same names for their parts.
    text = IDENTIFIERS.sub(f"{name}-", text)

    def opening(match: re.Match[str]) -> str:
        width = float(match["points"]) * PIXELS_OF_A_POINT
        return (
            f'<svg role="img" aria-label="{html.escape(alt)}" {match["view"]} '
            f'style="width: {width:.0f}px" xmlns:xlink="http://www.w3.org/1999/xlink">'
        )

    return OPENING.sub(opening, text, count=1)


class Drawing(SphinxDirective):
    """Show a drawing with its caption."""

    required_arguments = 1
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Draw, and return the figure."""
        name = self.arguments[0]
        if "alt" not in self.options:
            raise self.error(f"the drawing {name} needs the option alt, a description in words")
        for path in (FIGURES / f"{name}.py", FIGURES / "style.py"):
            self.env.note_dependency(str(path))
        figure = nodes.figure(classes=["drawing"])
        figure += nodes.raw("", svg_of(name, self.options["alt"]), format="html")
        if self.content:
            caption = nodes.caption()
            caption += self.parse_inline(" ".join(self.content), lineno=self.lineno)[0]
            figure += caption
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("drawing", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
