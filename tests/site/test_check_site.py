"""The check of the built site finds the faults that it is meant to find."""

import importlib.util
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GOOD = """<!DOCTYPE html><html lang="en"><head>
<link rel="stylesheet" href="style.css"><link rel="author" href="https://example.org">
</head><body>
<h1 id="top">Title</h1><h2 id="part">Part</h2><h3>Detail</h3><h2>Part</h2>
<a href="#part">here</a> <a href="other/two.html#there">there</a> <a href="https://example.org">far</a>
<img src="picture.png" alt="A square."> <svg role="img" aria-label="A circle."></svg>
<svg role="img" aria-hidden="true"></svg>
<iframe title="A frame." srcdoc="&lt;p&gt;"></iframe> <script src="code.js?v=1"></script>
</body></html>"""


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_site", ROOT / ".ci" / "check_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(tmp_path):
    (tmp_path / "other").mkdir()
    for name in ("style.css", "picture.png", "code.js"):
        (tmp_path / name).write_text("")
    two = '<html lang="en"><body><h1>Two</h1><p id="there"></p></body></html>'
    (tmp_path / "other" / "two.html").write_text(two)
    return tmp_path


def problems_of(check, site, text):
    path = site / "page.html"
    path.write_text(text)
    pages = {file: check.Page(file) for file in site.rglob("*.html")}
    page = pages[path]
    return [*page.problems, *page.heading_problems(), *check.link_problems(page, pages, site)]


def test_a_good_page_has_no_problem(check, site):
    assert problems_of(check, site, GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("#part", "#nowhere", "#nowhere names an anchor that does not exist"),
        ("#there", "#nowhere", "other/two.html#nowhere names an anchor that does not exist"),
        ("other/two.html", "../outside.html", "../outside.html#there does not exist"),
        ("code.js?v=1", "https://example.org/a.js", "<script> loads https://example.org/a.js"),
        ('href="style.css"', 'href="https://e.org/s.css"', "<link> loads https://e.org/s.css"),
        ("picture.png", "missing.png", "missing.png does not exist"),
        (' alt="A square."', "", "picture.png has no alternative text"),
        (' aria-label="A circle."', "", "a drawing has no alternative text"),
        (' title="A frame."', "", "a frame has no title"),
        ("h3", "h4", "a heading of level 4 follows one of 2"),
        ("<h2>Part</h2>", "<h1>Part</h1>", "there must be one heading of level 1, found 2"),
        ('id="part"', 'id="top"', "two elements have the id top"),
        (' lang="en"', "", "the page does not say its language"),
    ],
)
def test_each_problem_is_found(check, site, old, new, problem):
    assert old in GOOD
    assert problem in problems_of(check, site, GOOD.replace(old, new))


def test_a_style_sheet_may_load_nothing_from_elsewhere(check):
    found = check.LOADED_BY_STYLE.findall(
        "@import 'https://e.org/a.css'; a { b: url(//e.org/f.woff2) } c { d: url(../here.svg) }"
    )
    assert found == ["https://e.org/a.css", "//e.org/f.woff2"]


def test_names_that_the_reference_lacks_are_found(check, site):
    names = "regard.softmax py:function 1 api/stages.html#$ -\n"
    inventory = b"# one\n# two\n# three\n# four\n" + zlib.compress(names.encode())
    (site / "objects.inv").write_bytes(inventory)
    missing = check.missing_names(site)
    assert "regard.softmax" not in missing
    assert {"regard.matmul", "regard.masks.causal"} <= {*missing}
