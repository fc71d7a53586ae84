"""Test what the site's extensions make of docstrings, drawings and notebooks."""

import operator
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest

import regard

pytest.importorskip("sphinx", reason='pip install ".[docs]"')
pytest.importorskip("myst_nb", reason='pip install ".[docs]"')
pytest.importorskip("latex2mathml", reason='pip install ".[docs]"')

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(autouse=True)
def _extensions(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "scaled_dot_product_attention",
            "`scale` is not a link, `softmax` is, `regard.masks` too, and `nothing_known` is code",
            "``scale`` is not a link, :py:obj:`softmax <regard.softmax>` is, "
            ":py:obj:`regard.masks <regard.masks>` too, and ``nothing_known`` is code",
        ),
        (
            "masks.segments",
            "`causal`, `KVCache.attend`",
            ":py:obj:`causal <regard.masks.causal>`, "
            ":py:obj:`KVCache.attend <regard.KVCache.attend>`",
        ),
        (
            "matmul",
            "``scale`` :math:`a_b` `a link`_ `two words` (*batch, n) ``(*batch, n)``",
            r"``scale`` :math:`a_b` `a link`_ `two words` (\*batch, n) ``(*batch, n)``",
        ),
    ],
)
def test_public_names_are_links_and_parameters_are_code(name, before, after):
    import docstring_links

    documented, lines = operator.attrgetter(name)(regard), [before]
    docstring_links.link_names(None, "function", f"regard.{name}", documented, None, lines)
    assert lines == [after]


SVG = """<!-- made -->
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="30pt" height="15pt" viewBox="0 0 30 15" \
xmlns="http://www.w3.org/2000/svg">
<defs><path id="letter" d="M 0 0"/></defs>

<use xlink:href="#letter" style="fill: #787d84"/>
</svg>
"""


def rewritten_page(text, tmp_path):
    import plain_pages

    class App:
        srcdir = tmp_path

        class env:
            seen: ClassVar[list[str]] = []
            note_dependency = seen.append

    for folder in ("figures", "guide"):
        (tmp_path / folder).mkdir()
    (tmp_path / "figures" / "square.svg").write_text(SVG)
    source = [text]
    plain_pages.rewrite(App, "guide/page", source)
    return source[0]


def test_a_drawing_is_a_part_of_the_page(tmp_path):
    text = "before\n\n![A <square>](../figures/square.svg)\n\nafter\n"
    page = rewritten_page(text, tmp_path)
    assert page.startswith("before\n\n```{raw} html\n<figure")
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    assert "\n\n" not in svg
    root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert root.attrib["aria-label"] == "A <square>"
    assert "currentColor" in svg
    assert "#787d84" not in svg
    assert 'id="square-letter"' in svg
    assert 'href="#square-letter"' in svg


def test_contents_and_programs_become_directives(tmp_path):
    text = "<!-- contents: one\ntwo/index -->\n\n[docs/learn/a.cpp](programs/a.cpp)\n"
    page = rewritten_page(text, tmp_path)
    assert page == (
        "```{toctree}\n:hidden:\n\none\ntwo/index\n```\n\n"
        "```{literalinclude} programs/a.cpp\n:language: c++\n:caption: docs/learn/a.cpp\n```\n"
    )


def test_formulas_become_mathml_that_can_be_read_aloud():
    import mathml

    formula = mathml.mathml(r"\sum_{j < \mathrm{first\_keys}} w_{ij} \log w_{ij}", "inline")
    root = ElementTree.fromstring(formula)
    assert root.tag == "{http://www.w3.org/1998/Math/MathML}math"
    words = [part.text for part in root.iter() if part.tag.endswith("}mi")]
    assert words == ["j", "first_keys", "w", "i", "j", "log", "w", "i", "j"]
    assert formula.count("<mspace") == 2, "before and after log"
    assert "<mspace" not in mathml.mathml(r"\log(x)", "inline")
    assert mathml.mathml(r"x \log_2 e", "inline").count("</msub><mspace") == 1
    assert mathml.mathml(r"-\infty - (-\infty)", "inline").count('<mo form="prefix">') == 1
