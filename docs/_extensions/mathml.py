"""Turn formulas into MathML while the site is built: browsers draw it without a script."""

from __future__ import annotations

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LETTER = r'<mi mathvariant="normal">([^<]+)</mi>'
WORD = re.compile(rf"<mrow>(?:{LETTER}){{2,}}</mrow>")
FUNCTION = r"<mi>(?:cos|exp|log|max|min|sin|tanh)</mi>"
# A function with an index or an exponent, or without one and not within such a pair.
INDEXED = rf"<msu[bp]>{FUNCTION}<m[in]>[^<]*</m[in]></msu[bp]>|(?<!<msub>)(?<!<msup>){FUNCTION}"
THIN_SPACE = '<mspace width="0.167em" />'
BEFORE_FUNCTION = re.compile(rf"(</(?:mi|mn|msub|msubsup|msup)>)(?=<msu[bp]>{FUNCTION}|{FUNCTION})")
AFTER_FUNCTION = re.compile(rf"({INDEXED})(?!<mo[^>]*>&#x0*28;)(?=<m)")
# A sign has no space after it; a browser treats a sign after an operator as a binary operator.
SIGN = re.compile(r"(<mo[^>]*>(?:&#x0*28;|&#x0*5B;|\[|&#x0*3D;|,|&#x0*2C;)</mo>)<mo>(?=&#x0*2212;)")
# A prime is raised by itself.
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>(&#x0*2032;)</mi></msup>")
INFINITY = re.compile(r"<mo>(&#x0*221E;)</mo>")


def mathml(latex: str, display: str) -> str:
    """Convert a formula, with words in one piece and the spaces of TeX."""
    converted = WORD.sub(word, convert(latex, display=display))
    converted = INFINITY.sub(r"<mi>\1</mi>", SIGN.sub(r'\1<mo form="prefix">', converted))
    converted = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">\2</mo></mrow>', converted)
    return AFTER_FUNCTION.sub(
        rf"\1{THIN_SPACE}", BEFORE_FUNCTION.sub(rf"\1{THIN_SPACE}", converted)
    )


def word(match: re.Match[str]) -> str:
    """Join the letters of an upright word, so that it is read as one."""
    return f"<mi>{''.join(re.findall(LETTER, match[0]))}</mi>"


def visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def rows(latex: str) -> list[str]:
    """Return the formulas of a display, which empty lines or double backslashes separate."""
    formulas = re.split(r"\n\s*\n", latex.strip())
    lines = [[each] if r"\begin" in each else each.split(r"\\") for each in formulas]
    return [line for formula in lines for line in formula if line.strip()]


def visit_display(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write formulas on separate lines, with their number if they have one."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})</span>')
    for formula in rows(node.astext()):
        translator.body.append(mathml(formula, "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
