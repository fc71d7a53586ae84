"""Build the site from pages that are plain Markdown, as GitHub shows them.

Three things that only the site has are written so that GitHub shows something equivalent:

* ``<!-- contents: first second -->`` lists the pages of a section.
* An image ``![description](../figures/name.svg)`` of a drawing becomes part of the page, so that
  its ink has the color of the page's text.
* A paragraph that is only a link to a program, ``[docs/learn/programs/name](programs/name)``,
  becomes the program's source.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from sphinx.application import Sphinx

INK = "#787d84"
CONTENTS = re.compile(r"^<!-- contents: (.*?) -->$", re.MULTILINE | re.DOTALL)
DRAWING = re.compile(
    r"^!\[(?P<alt>[^\]]*)\]\((?P<path>[\w./-]*figures/(?P<name>\w+)\.svg)\)$", re.M
)
PROGRAM = re.compile(r"^\[(?P<caption>[\w./-]+)\]\((?P<path>programs/[\w.-]+)\)$", re.MULTILINE)
IDENTIFIERS = re.compile(r'(?<= id=")|(?<=href="#)|(?<=url\(#)')
OPENING = re.compile(
    r'<svg [^>]*?width="(?P<points>[\d.]+)pt"[^>]*?(?P<view>viewBox="[^"]*")[^>]*>'
)
PIXELS_OF_A_POINT = 4 / 3
LANGUAGES = {".py": "python", ".cpp": "c++", ".hpp": "c++"}


def rewrite(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace what only the site has in the source of a page."""
    folder = Path(app.srcdir, name).parent
    text = CONTENTS.sub(contents, source[0])
    text = PROGRAM.sub(program, text)

    def inline(match: re.Match[str]) -> str:
        path = folder / match["path"]
        app.env.note_dependency(str(path))
        return drawing(path.read_text(encoding="utf-8"), match["name"], match["alt"])

    source[0] = DRAWING.sub(inline, text)


def contents(match: re.Match[str]) -> str:
    """Return the directive that lists pages."""
    return "\n".join(["```{toctree}", ":hidden:", "", *match[1].split(), "```"])


def program(match: re.Match[str]) -> str:
    """Return the directive that shows a program."""
    language = LANGUAGES[Path(match["path"]).suffix]
    return (
        f"```{{literalinclude}} {match['path']}\n"
        f":language: {language}\n:caption: {match['caption']}\n```"
    )


def drawing(picture: str, name: str, alt: str) -> str:
    """Return a drawing as a part of a page, which may have others."""

    def opening(match: re.Match[str]) -> str:
        width = float(match["points"]) * PIXELS_OF_A_POINT
        return (
            f'<svg role="img" aria-label="{html.escape(alt)}" {match["view"]} '
            f'style="width: {width:.0f}px" xmlns:xlink="http://www.w3.org/1999/xlink">'
        )

    picture = IDENTIFIERS.sub(f"{name}-", picture[picture.index("<svg") :])
    picture = OPENING.sub(opening, re.sub(INK, "currentColor", picture, flags=re.I), count=1)
    # A blank line would end the block of HTML.
    picture = "\n".join(line for line in picture.splitlines() if line.strip())
    return f'```{{raw}} html\n<figure class="drawing">\n{picture}\n</figure>\n```'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handler."""
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
