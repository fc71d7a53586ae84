"""Test what a terminal receives: styles if it supports them, its own encoding, and nothing
hostile."""

import io
import re
import sys

import numpy as np
import pytest

from regard._cli.stages import EXAMPLE
from regard._cli.terminal import Progress
from regard._cli.walkthrough import number_table, side_by_side, weight_table
from regard._show.text import clip, printable, width_of

SGR = re.compile("\x1b\\[[0-9;]*m")


@pytest.mark.parametrize(
    ("environment", "is_styled"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
    ],
)
def test_a_terminal_has_styles_unless_they_are_unwanted(on_terminal, environment, is_styled):
    text = on_terminal("--no-timing", **environment)
    assert ("\x1b[1m" in text) == is_styled
    assert "█ 1.00" in text


@pytest.mark.parametrize("sentence", [EXAMPLE, "日本 語 " * 9, "unusually " * 7])
def test_lines_fit(shown, sentence):
    text = shown("--no-timing", sentence)
    assert max(map(width_of, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("environment", "encoding", "words"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "ascii", [r"na\xefve", r"\u65e5\u672c", "# 1.00"]),
    ],
)
def test_what_the_encoding_lacks_is_replaced(process, environment, encoding, words):
    done = process("--no-timing", "naïve 日本", text=False, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert [word for word in words if word not in text] == []


def test_escape_sequences_do_not_reach_the_terminal(shown):
    text = shown("--no-timing", "\x1b[31mred \x1b]0;title\x07 a\x9b2Jb \u202eevil \x7f")
    assert not [char for char in text if char != "\n" and not char.isprintable()]
    assert r"\x1b[31m" in text


@pytest.mark.parametrize(
    ("text", "width", "clipped"),
    [("abcdef", 4, "abc…"), ("日本語", 4, "日…"), ("日本語", 5, "日本…"), ("abc", 3, "abc")],
)
def test_clip(text, width, clipped):
    assert clip(text, width) == clipped
    assert width_of(clipped) <= width


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("plain", "plain"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u202eb", "ab"),
        ("\u200d", r"\u200d"),
        ("\udc80", r"\udc80"),
        ("\u2028", r"\u2028"),
    ],
)
def test_printable(raw, safe):
    assert printable(raw) == safe


@pytest.mark.parametrize("length", [4, 9])
def test_wide_characters_stay_aligned(length):
    tokens = ["日本語", "and", "é" * 3, "wide 文", *"abcde"][:length]
    values = np.eye(length, dtype=np.float32)
    for table in (
        number_table("numbers", values, 2, tokens),
        weight_table("weights", values, tokens),
    ):
        _, header, *rows = side_by_side(tokens, table, table)
        widths = {width_of(row) for row in rows if not row.startswith("  …")}
        assert len(widths) == 1
        assert length > 6 or width_of(header) in widths


@pytest.mark.parametrize(
    ("is_terminal", "expected"),
    [
        (
            True,
            "\r\x1b[K0:00 [1/2] first: a\r\x1b[K0:00 [1/2] first: b"
            "\r\x1b[K0:00 [2/2] second: " + "c" * 60 + "\r\x1b[K",
        ),
        (False, "0:00 [1/2] first\n0:00 [2/2] second\n"),
    ],
)
def test_progress_is_one_line_on_a_terminal(monkeypatch, is_terminal, expected):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(2)
    for message in (("first", "a"), ("first", "b"), ("second", "c" * 100)):
        progress.show(message)
    progress.clear()
    assert stream.getvalue() == expected
