"""Test weights as a shaded table: text if printed, HTML in a notebook; and the arguments of
everything that shows attention, `tokens` and weights."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import regard
from regard._show.labels import tokens_of_axes
from regard._show.text import width_of

HOSTILE = ["<script>alert(1)</script>", "\"&'", "a\nb\x1b[31m", "x" * 5000, "😀", "\ud800"]
rng = np.random.default_rng(0)


class Table(HTMLParser):
    """The tags, their attributes, and the texts of cells."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.cells, self.headers, self.caption, self._open = [], [], [], "", []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "td":
            self.cells.append("")
        if tag == "th":
            self.headers.append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "td" in self._open:
            self.cells[-1] += data
        elif "th" in self._open:
            self.headers[-1] += data
        elif "caption" in self._open:
            self.caption += data


def causal_weights(*shape):
    length = shape[-1]
    scores = np.where(np.tri(length, dtype=bool), rng.standard_normal(shape), -np.inf)
    return regard.softmax(scores)


def test_text():
    weights = [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.05, np.nan, np.nan]]
    shown = regard.show(weights, ["the", "cat", "sat"])
    assert str(shown) == repr(shown)
    assert str(shown).splitlines() == [
        "        the    cat    sat",
        "the  █ 1.00      ·      ·",
        "cat  ▒ 0.25 █ 0.75      ·",
        "sat  ░ 0.05    NaN    NaN",
    ]


@pytest.mark.parametrize("shape", [(1, 1), (9, 9), (10, 3), (3, 10), (34, 34), (500, 800)])
def test_lines_fit_and_say_what_is_left_out(shape):
    weights = regard.softmax(rng.standard_normal(shape) * 3)
    text = str(regard.show(weights))
    lines = text.splitlines()
    assert max(map(width_of, lines)) <= 80
    if max(shape) > 9:
        assert f"{shape[0]:,} queries and {shape[1]:,} keys" in lines[-1]
        assert ("and all in shades" in lines[-1]) == (max(shape) <= 34)
    first = re.findall(r"\d\.\d\d", lines[1])
    assert first == [f"{weight:.2f}" for weight in weights[0, :9]]
    assert (" …" in lines[1]) == (shape[1] > 9)
    assert any(line.startswith("… ") for line in lines) == (shape[0] > 9)


def test_every_head_has_a_table():
    weights = causal_weights(2, 2, 3, 3)
    text = str(regard.show(weights))
    titles = re.findall(r"^head (.*)$", text, re.M)
    assert titles == ["0, 0", "0, 1", "1, 0", "1, 1"]
    assert str(regard.show(weights, head=(1, 0))).startswith("head 1, 0\n")
    many = regard.show(causal_weights(11, 3, 3))
    assert str(many).count("head ") == 8
    assert str(many).endswith("… and 3 more heads: pass head= to show one")
    assert many._repr_html_().count("<table") == 8
    assert "3 more heads" in many._repr_html_()
    none = regard.show(np.zeros((0, 3, 3)))
    assert (str(none), none._repr_html_()) == ("no weights: 0 heads", "<p>no weights: 0 heads</p>")


def test_html():
    weights = np.array([[1.0, 0.0], [0.25, np.nan]])
    table = Table(regard.show(weights, (["q0", "q1"], ["k0", "k1"]))._repr_html_())
    assert table.caption == "Attention weights: queries are rows, keys are columns"
    assert table.headers == ["k0", "k1", "q0", "q1"]
    assert table.cells == ["", "1.00", "·", "0.25", "NaN"]
    scopes = [attributes["scope"] for tag, attributes in table.tags if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]
    styles = [attributes.get("style", "") for tag, attributes in table.tags if tag == "td"]
    shades = [re.findall(r"rgba\(.*, (.*)\)", style) for style in styles[1:]]
    assert shades == [["0.60"], [], ["0.30"], []]


def test_tokens_are_never_markup_nor_escape_sequences():
    length = len(HOSTILE)
    shown = regard.show(np.eye(length), HOSTILE)
    page, text = shown._repr_html_(), str(shown)
    table = Table(page)
    assert {tag for tag, _ in table.tags} <= {
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "bdi")
    }
    assert table.headers[0] == "<script>alert(1)</scrip…"
    assert table.headers[1] == HOSTILE[1]
    assert len(page) < 20_000
    assert "\x1b" not in page + text
    assert "\ud800" not in page + text
    (page + text).encode()
    assert len(text.splitlines()) == length + 1


WORDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("tokens", "sizes", "query", "key"),
    [
        (None, (2, 3), None, None),
        (WORDS, (4, 4), WORDS, WORDS),
        (np.array(WORDS, object), (4, 4), WORDS, WORDS),
        (WORDS, (2, 4, 2), ["c", "d"], WORDS),
        ((["x"], WORDS), (1, 4), ["x"], WORDS),
        ((None, WORDS), (1, 4), None, WORDS),
        ((WORDS, np.array(["x", "y"])), (4, 2, 3), WORDS, ["x", "y"]),
        (["", "\n", "<b>", "\N{RIGHT-TO-LEFT MARK}"], (4, 4), *[["", "\n", "<b>", "\u200f"]] * 2),
    ],
)
def test_tokens(tokens, sizes, query, key):
    found = tokens_of_axes(tokens, *sizes)
    assert found == (query, key)
    for texts in found:
        assert all(type(text) is str for text in texts or [])
