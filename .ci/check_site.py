"""Check a built site: ``python .ci/check_site.py build/site``.

Every relative link and every anchor must exist. A page must load nothing from another machine.
Headings, pictures and names must be accessible to readers who cannot see the page. The reference
must contain every public name of regard. If Chromium is installed, a search must find pages without
a server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import regard

# The tags that make a browser load something, and the attribute that specifies the address.
LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "image": "href",
    "img": "src",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "use": "href",
    "video": "src",
}
LOADING_LINKS = {"icon", "manifest", "modulepreload", "prefetch", "preload", "stylesheet"}
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")
LISTED = re.compile(r"^__all__ = \[(.*?)\]", re.DOTALL | re.MULTILINE)
HEADINGS = {f"h{level}": level for level in range(1, 7)}
# Packages of the command line, which has separate pages.
WITHOUT_REFERENCE = {"bench", "cli"}


def describes(text: str, values: dict[str, str]) -> bool:
    """Tell whether the alternative text of a picture is more than the name of its file."""
    return bool(text.strip()) and Path(text).name != Path(values.get("src", "")).name


class Page(HTMLParser):
    """The properties of a page that the checks use."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.headings: list[int] = []
        self.problems: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Record anchors, links and headings, and the problems of this tag."""
        values = {name: value or "" for name, value in attributes}
        if name := values.get("id"):
            if name in self.anchors:
                self.problems.append(f"two elements have the id {name}")
            self.anchors.add(name)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        loaded = values.get(LOADED.get(tag, ""))
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            loaded = values.get("href")
        if loaded:
            self.links.append(loaded)
            if urlsplit(loaded).netloc:
                self.problems.append(f"<{tag}> loads {loaded}")
        if tag in HEADINGS:
            self.headings.append(HEADINGS[tag])
        if tag == "html" and not values.get("lang"):
            self.problems.append("the page does not say its language")
        if tag == "img" and not describes(values.get("alt", ""), values):
            self.problems.append(f"{values.get('src')} has no alternative text")
        if tag == "iframe" and not values.get("title"):
            self.problems.append("a frame has no title")
        is_picture = tag == "svg" and values.get("role") == "img"
        if is_picture and not {"aria-label", "aria-hidden"} & set(values):
            self.problems.append("a drawing has no alternative text")

    def heading_problems(self) -> list[str]:
        """Return the places where a heading is missing or skips a level."""
        if self.headings.count(1) != 1:
            return [f"there must be one heading of level 1, found {self.headings.count(1)}"]
        jumps = zip(self.headings, self.headings[1:], strict=False)
        return [f"a heading of level {b} follows one of {a}" for a, b in jumps if b > a + 1]


def link_problems(page: Page, pages: dict[Path, Page], site: Path) -> list[str]:
    """Return the broken relative links of a page."""
    problems = []
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page.path
        if parts.path:
            target = (page.path.parent / unquote(parts.path)).resolve()
        if not target.is_relative_to(site) or not target.is_file():
            problems.append(f"{link} does not exist")
            continue
        known = pages[target].anchors if target in pages else {unquote(parts.fragment)}
        if parts.fragment and unquote(parts.fragment) not in known:
            problems.append(f"{link} names an anchor that does not exist")
    return problems


def missing_names(site: Path) -> list[str]:
    """Return the public names that are not in the site's inventory."""
    lines = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ")[0] for line in zlib.decompress(lines).decode().splitlines()}
    names = {f"regard.{name}" for name in regard.__all__ if not name.startswith("_")}
    for path in Path(regard.__file__).parent.glob("[!_]*/__init__.py"):
        # The file is read and not imported, since a package that it needs may be missing.
        listed = LISTED.search(path.read_text(encoding="utf-8"))
        if path.parent.name not in WITHOUT_REFERENCE and listed is not None:
            module = f"regard.{path.parent.name}"
            names |= {f"{module}.{name}" for name in re.findall(r'"(\w+)"', listed[1])}
    aliases = {f"regard.layers.{name}": f"regard.{name}" for name in regard.__all__}
    return sorted(name for name in names if not {name, aliases.get(name)} & known)


def search_problems(site: Path, word: str) -> list[str]:
    """Return a problem if a search for a word finds nothing; skip the search without a browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("skipped: the search, since Chromium is not installed")
        return []
    options = ["--headless", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom"]
    address = f"{(site / 'search.html').as_uri()}?q={word}"
    done = subprocess.run(
        [browser, *options, address], capture_output=True, text=True, timeout=120, check=False
    )
    results = done.stdout.partition('id="search-results"')[2]
    found = len(re.findall(r'<li class="[^"]*kind-', results))
    print(f"a search for {word} finds {found} results")
    return [] if found else [f"a search for {word} finds nothing"]


def main(folder: str) -> int:
    """Print the problems of the site in a folder, and return the exit status."""
    site = Path(folder).resolve()
    if not (site / "objects.inv").is_file():
        sys.exit(f"{folder} holds no site: build one with python -m sphinx -b html docs {folder}")
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path: Page(path) for path in files}
    problems = [f"the reference lacks {name}" for name in missing_names(site)]
    problems += search_problems(site, "window")
    for path, page in pages.items():
        found = [*page.problems, *page.heading_problems(), *link_problems(page, pages, site)]
        problems += [f"{path.relative_to(site)}: {problem}" for problem in found]
    for path in sorted(site.rglob("*.css")):
        for address in LOADED_BY_STYLE.findall(path.read_text(encoding="utf-8")):
            problems.append(f"{path.relative_to(site)}: loads {address}")
    print(*problems, sep="\n", end="\n" if problems else "")
    links = sum(len(page.links) for page in pages.values())
    print(f"{len(pages)} pages, {links} links, {len(problems)} problems")
    return 1 if problems or not pages else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/check_site.py FOLDER")
    sys.exit(main(sys.argv[1]))
