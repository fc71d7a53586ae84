"""What a terminal gets from the command line: colours, lines that fit, and nothing hostile."""

import io
import json
import re
import subprocess

import numpy as np
import pytest

from command_line import COMMAND, ENVIRONMENT
from regard.cli import terminal
from regard.cli.grid import weights_grid
from regard.cli.layout import number_table, side_by_side
from regard.cli.terminal import ASCII, Terminal, clip, printable, step, width_of
from regard.cli.words import EXAMPLE

ESCAPE = "\x1b"
SGR = re.compile("\x1b\\[[0-9;]*m")


def test_colours_on_a_terminal(on_terminal):
    rich = on_terminal("--no-timing", TERM="xterm-256color", COLORTERM="truecolor")
    assert f"{ESCAPE}[38;2;255;255;255;48;2;" in rich
    poorer = on_terminal("--no-timing", TERM="xterm-256color")
    assert f"{ESCAPE}[38;5;231;48;5;" in poorer
    assert "48;2;" not in poorer
    # Above the legend, which shows every shade once, the two differ in nothing but the colours.
    above = [SGR.sub("", text).split("0.02")[0] for text in (rich, poorer)]
    assert above[0] == above[1]


@pytest.mark.parametrize(
    "environment",
    [
        {"TERM": "xterm-256color", "NO_COLOR": "1"},
        {"TERM": "dumb", "COLORTERM": "truecolor"},
        {"TERM": "linux"},
        {},
    ],
)
def test_plain_on_a_terminal(on_terminal, environment):
    text = on_terminal("--no-timing", **environment)
    assert ESCAPE not in text
    assert "█ 1.00" in text


def test_plain_where_there_is_no_terminal(shown):
    text = shown("--no-timing", TERM="xterm-256color", COLORTERM="truecolor")
    assert ESCAPE not in text
    assert "█ 1.00" in text


def test_json_has_no_colours_on_a_terminal(on_terminal):
    text = on_terminal("--no-timing", "--json", TERM="xterm-256color")
    assert json.loads(text)["tokens"] == EXAMPLE.split()


@pytest.mark.parametrize("columns", [32, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("sentence", [EXAMPLE, "日本 語 " * 9])
def test_lines_fit(on_terminal, columns, sentence):
    text = on_terminal("--no-timing", sentence, columns=columns, TERM="xterm-256color")
    assert max(width_of(line) for line in text.splitlines()) <= min(columns, 100)


def test_the_whole_default_fits_in_80_columns(shown):
    assert max(map(width_of, shown().splitlines())) <= 80


def test_columns_of_the_environment(shown):
    text = shown("--no-timing", COLUMNS="40")
    assert max(map(width_of, text.splitlines())) <= 40
    assert shown("--no-timing", COLUMNS="wide") == shown("--no-timing")


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_ascii_output(cli, environment):
    done = cli("--no-timing", "naïve 日本", text=False, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "@ 1.00" in text
    assert re.search(r"na\\[\\\w]+ve", text)


def test_latin_1_output(cli):
    done = cli("--no-timing", "naïve 日本", text=False, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "naïve" in done.stdout.decode("latin-1")


HOSTILE = "\x1b[31mred \x1b]0;title\x07 a\x9b2Jb \u202eevil \x7f"


def test_escape_sequences_do_not_reach_the_terminal(on_terminal):
    text = SGR.sub("", on_terminal("--no-timing", HOSTILE, TERM="xterm-256color"))
    assert not [char for char in text if char != "\n" and not char.isprintable()]
    assert r"\x1b[31m" in text


def test_escape_sequences_do_not_reach_stderr(cli):
    done = cli("info", "\x1b[31mred\x07")
    assert done.returncode == 2
    assert ESCAPE not in done.stderr
    assert "\x07" not in done.stderr


def test_bytes_that_are_no_text(tmp_path, torch_is):
    done = subprocess.run(
        [*COMMAND, "--no-timing", b"odd \xff\xfe bytes"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\udcff" in done.stdout


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("日本", 4), ("e\u0301", 1), (f"{ESCAPE}[1mx{ESCAPE}[0m", 1)]
)
def test_width(text, width):
    assert width_of(text) == width


@pytest.mark.parametrize(
    ("text", "width", "clipped"),
    [("abcdef", 4, "abc…"), ("日本語", 4, "日…"), ("日本語", 5, "日本…"), ("abc", 3, "abc")],
)
def test_clip(text, width, clipped):
    assert clip(text, width, "…") == clipped
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


def test_wide_characters_stay_aligned():
    tokens = ["日本語", "and", "é" * 3, "wide 文"]
    on = Terminal(io.StringIO(), columns=100)
    values = np.eye(4, dtype=np.float32)
    tables = [
        number_table(on, "numbers", values, 2, shown=4, across=tokens, room=60),
        weights_grid(on, "picture", tokens, values, 10),
        weights_grid(on, "numbered", tokens, values, 60),
    ]
    for table in tables:
        assert len({width_of(line) for line in table.rows + table.headers}) == 1
    lines = side_by_side(on, tokens, tables[:1])
    assert len({width_of(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("strength", "steps"), [(0.0, 0), (0.3, 1), (0.5, 2), (1.0, 3), (float("nan"), 0), (-1.0, 0)]
)
def test_shades_are_equal_steps(strength, steps):
    assert step(strength, 4) == steps


def test_no_colour_where_a_stream_is_none():
    on = Terminal.of(None, {"TERM": "xterm-256color"})
    on.write("nowhere")
    assert on.colours == 0


def test_ascii_glyphs_are_ascii():
    assert all(glyph.isascii() for glyph in vars(ASCII).values())
    assert terminal.UNICODE.shades != ASCII.shades
