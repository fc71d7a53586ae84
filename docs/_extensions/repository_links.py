"""Let documents link to files of the repository that are not pages of the site.

On the site, a link to a source file downloads it, and a link to the README or to another document
next to ``docs`` leads to the page that includes it.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<file>README|CHANGELOG|CONTRIBUTING)\.md")
INTO_DOCS = re.compile(r"\]\(docs/")


def rewrite(app: Sphinx, name: str, source: list[str]) -> None:
    """Point links at the pages of the site."""
    depth = name.count("/")

    def page(match: re.Match[str]) -> str:
        if match["up"].count("../") != depth + 1:
            return match[0]
        return "](" + "../" * depth + PAGES[match["file"] + ".md"]

    source[0] = LINK.sub(page, source[0])


def rewrite_included(app: Sphinx, path, name: str, source: list[str]) -> None:
    """Point the links of a document next to ``docs`` at the pages of the site."""
    source[0] = INTO_DOCS.sub("](", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers."""
    app.connect("source-read", rewrite)
    app.connect("include-read", rewrite_included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
