"""Test what the site's extensions make of docstrings, drawings and notebooks."""

import ast
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import regard

pytest.importorskip("sphinx", reason="pip install 'regard[docs]'")
pytest.importorskip("myst_nb", reason="pip install 'regard[docs]'")
pytest.importorskip("latex2mathml", reason="pip install 'regard[docs]'")

DOCS = Path(__file__).parent.parent.parent / "docs"
FIGURES = sorted(
    path.stem
    for path in (DOCS / "figures").glob("*.py")
    if any(
        isinstance(part, ast.FunctionDef) and part.name == "draw" and not part.args.args
        for part in ast.parse(path.read_text(encoding="utf-8")).body
    )
)


@pytest.fixture(autouse=True)
def _extensions(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")


def rewritten(name, documented, *lines):
    import docstring_links

    lines = list(lines)
    docstring_links.link_names(None, "function", name, documented, None, lines)
    return lines


def test_parameters_are_code_and_public_names_are_links():
    attention = regard.scaled_dot_product_attention
    [line] = rewritten(
        "regard.scaled_dot_product_attention",
        attention,
        "`scale` is no link, `softmax` is, `regard.masks` too, and `nothing_known` is code",
    )
    assert line == (
        "``scale`` is no link, :py:obj:`softmax <regard.softmax>` is, "
        ":py:obj:`regard.masks <regard.masks>` too, and ``nothing_known`` is code"
    )


def test_names_of_the_same_module_and_methods_are_links():
    [line] = rewritten("regard.masks.segments", regard.masks.segments, "`causal`, `KVCache.attend`")
    assert line == (
        ":py:obj:`causal <regard.masks.causal>`, :py:obj:`KVCache.attend <regard.KVCache.attend>`"
    )


def test_roles_and_code_stay_as_they_are():
    lines = ["``scale`` :math:`a_b` `a link`_ `two words`", "shape (*batch, n) ``(*batch, n)``"]
    assert rewritten("regard.matmul", regard.matmul, *lines) == [
        lines[0],
        r"shape (\*batch, n) ``(*batch, n)``",
    ]


@pytest.mark.parametrize("name", FIGURES)
def test_a_drawing_is_a_part_of_the_page(name, monkeypatch):
    import drawings

    monkeypatch.setattr(sys, "path", [*sys.path])
    svg = drawings.svg_of(name, 'A "square" <1>')
    root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert root.attrib["aria-label"] == 'A "square" <1>'
    assert "currentColor" in svg
    assert "#787d84" not in svg.lower()
    names = [part.attrib["id"] for part in root.iter() if "id" in part.attrib]
    assert names
    assert all(each.startswith(f"{name}-") for each in names)


def test_a_downloaded_notebook_has_no_word_of_the_site():
    import nbformat
    import notebook_downloads

    streams = [
        nbformat.v4.new_output("stream", name="stdout", text=text)
        for text in ("one\ntwo\n", "two\n")
    ]
    cells = [
        nbformat.v4.new_markdown_cell("# Title\n\n{nb-download}`Get it <a.ipynb>`\n\ntext"),
        nbformat.v4.new_markdown_cell("```{drawing} merge\n:alt: x\n```"),
        nbformat.v4.new_code_cell("print()", outputs=streams),
    ]
    notebook = notebook_downloads.clean(nbformat.v4.new_notebook(cells=cells))
    title, code = notebook.cells
    assert title.source == "# Title\n\ntext"
    assert [output.text for output in code.outputs] == ["one\ntwo\n"]


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


def test_a_display_has_a_formula_for_each_line():
    import mathml

    assert mathml.rows("a \\\\ b\n\nc\n") == ["a ", " b", "c"]
    split = "\\begin{aligned} a \\\\ b \\end{aligned}"
    assert mathml.rows(split) == [split]
