"""Test which command runs, the output of info, and what a terminal receives: styles if it supports
them, its own encoding, and nothing hostile."""

import json
import re

import pytest

import regard
from regard._cli.stages import EXAMPLE
from regard._show.text import width_of


def test_info(shown):
    text = shown("info")
    config = regard.show_config(mode="dicts")
    for word in (config["version"], config["compiler"], config["active_reason"]):
        assert word in text
    for target in config["targets"]:
        assert re.search(rf"{target['name']} .*run", text)


def test_info_follows_the_environment(process):
    done = process("info", "--json", REGARD_TARGET="baseline", REGARD_NUM_THREADS="3")
    result = json.loads(done.stdout)
    assert (result["active_target"], result["threads"]) == ("baseline", 3)
    assert "REGARD_TARGET" in result["active_reason"]
    assert "REGARD_NUM_THREADS" in result["threads_reason"]


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["two words"], ["two", "words"]),
        (["demo", "bench", "info"], ["bench", "info"]),
    ],
)
def test_a_sentence(shown, arguments, tokens):
    assert json.loads(shown(*arguments, "--json", "--no-timing"))["tokens"] == tokens


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


def test_what_the_encoding_lacks_is_replaced(process):
    done = process("--no-timing", "naïve 日本", text=False, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    for word in (r"na\xefve", r"\u65e5\u672c", "# 1.00"):
        assert word in text


def test_escape_sequences_do_not_reach_the_terminal(shown):
    text = shown("--no-timing", "\x1b[31mred \x1b]0;title\x07 a\x9b2Jb \u202eevil \x7f")
    assert not [char for char in text if char != "\n" and not char.isprintable()]
    assert r"\x1b[31m" in text
