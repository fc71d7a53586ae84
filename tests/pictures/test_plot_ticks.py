"""Test labels at queries and keys: as many as there is room for, and always the tokens
themselves."""

import io
import itertools
import re

import numpy as np
import pytest

import regard

pytest.importorskip("matplotlib")

HOSTILE = [
    "$x_1$", "$", r"\$", "<b>&", "a\nb", "\x1b[31m", "", "  ", "{}_^%#~", "x" * 5000,
    "\N{GRINNING FACE}", "日本", "שלום", "\u200f", "e\u0301", "\ud800",
]  # fmt: skip


def labels_on(axis):
    """Return the texts that an axis shows after drawing, with their places on the screen."""
    axis.axes.figure.canvas.draw()
    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [(tick.label1.get_text(), tick.label1.get_window_extent()) for tick in shown]


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("size", [(6.4, 4.8), *slow((2.5, 2), (12, 10))])
@pytest.mark.parametrize("kind", ["numbers", "long"])
@pytest.mark.parametrize("length", [7, *slow(1, 2, 30, 300, 12345)])
def test_labels_do_not_overlap(pyplot, size, kind, length):
    tokens = {
        "numbers": None,
        "long": [f"token number {i}" for i in range(length)],
    }[kind]
    ax = pyplot.figure(figsize=size, layout="constrained").subplots()
    regard.plot.pattern(q_len=length, is_causal=True, tokens=tokens, ax=ax, colorbar=False)
    for axis in (ax.xaxis, ax.yaxis):
        labels = labels_on(axis)
        assert 1 <= len(labels) <= length
        boxes = [box for _, box in labels]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
        low, high = sorted(axis.get_view_interval())
        wanted = tokens or [str(i) for i in range(length)]
        for at in axis.get_majorticklocs():
            if low <= at <= high:
                text = axis.get_major_formatter()(at, 0)
                assert wanted[round(at)].startswith(text.removesuffix("…"))


def test_zooming_in_shows_more_tokens(pyplot):
    tokens = [f"token {i}" for i in range(1000)]
    ax = regard.plot.pattern(q_len=1000, is_causal=True, tokens=tokens).axes
    ax.set(xlim=(99.5, 104.5), ylim=(104.5, 99.5))
    assert [text for text, _ in labels_on(ax.xaxis)] == tokens[100:105]


@pytest.mark.parametrize("kind", ["png", *slow("svg", "pdf")])
def test_hostile_tokens_are_drawn(pyplot, kind):
    length = len(HOSTILE)
    image = regard.plot.attention(np.eye(length), HOSTILE)
    image.figure.savefig(io.BytesIO(), format=kind)
    regard.plot.heads(np.stack([np.eye(length)] * 2), HOSTILE, names=["$a$", "\N{GRINNING FACE}"])
    pyplot.gcf().savefig(io.BytesIO(), format=kind)


def test_tokens_are_text_and_not_formulas(pyplot):
    pyplot.rcParams["svg.fonttype"] = "none"
    image = regard.plot.attention(np.eye(4), ["$x_1$", r"\$", "<script>", "a\nb"])
    file = io.StringIO()
    image.figure.savefig(file, format="svg")
    svg = file.getvalue()
    for text in ("$x_1$", r"\$", "&lt;script&gt;", r"a\nb"):
        assert len(re.findall(rf"<text[^>]*>{re.escape(text)}</text>", svg)) == 2, text
    assert "<script>" not in svg
    assert svg.count("<image") == 2  # the picture, and its scale
