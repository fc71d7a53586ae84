"""The command line, run as a user runs it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import regard
from regard.cli import demo, terminal, timing
from regard.cli.grid import weights_grid
from regard.cli.layout import number_table, side_by_side
from regard.cli.terminal import ASCII, Terminal, clip, printable, step, width_of
from regard.cli.words import EXAMPLE, MAX_TOKENS, UnusableSentenceError, embed, tokenize

ESCAPE = "\x1b"
SGR = re.compile("\x1b\\[[0-9;]*m")
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("REGARD_", "OMP_", "PYTHONIO", "PYTHONUTF8", "LC_"))
    and name not in ("LANG", "TERM", "COLORTERM", "COLUMNS", "NO_COLOR")
} | {"PYTHONUTF8": "1"}
COMMAND = [sys.executable, "-m", "regard"]

# A stand-in says that PyTorch is missing, so that no test waits for the real one.
NO_TORCH = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"


@pytest.fixture
def torch_is(tmp_path):
    """Put a module in the place of PyTorch, for the commands that run in tmp_path."""

    def write(source):
        (tmp_path / "torch.py").write_text(textwrap.dedent(source))

    write(NO_TORCH)
    return write


@pytest.fixture
def cli(tmp_path, torch_is):
    """Run the command line and capture what it prints."""

    def run(*arguments, text=True, **environment):
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT | environment,
            capture_output=True,
            text=text,
            encoding="utf-8" if text else None,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def shown(cli):
    """What a command prints that ends well."""

    def run(*arguments, **environment):
        done = cli(*arguments, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def on_terminal(tmp_path, torch_is):
    """Run the command line on a pseudo-terminal; what it shows, as text."""
    pty = pytest.importorskip("pty")
    import fcntl
    import struct
    import termios

    def run(*arguments, columns=80, **environment):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
        with subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT | environment,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
        ) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # Linux's way to say that the other end is closed
                    break
                if not piece:
                    break
                seen += piece
            os.close(ours)
            assert process.wait(timeout=60) == 0
            assert process.stderr.read() == b""
        return seen.decode().replace("\r\n", "\n")

    return run


# The main job


def test_example_shows_every_stage_and_its_check(shown):
    text = shown("--no-timing")
    names = re.findall(r"^(\d) (\w+) ", text, re.MULTILINE)
    assert [name for _, name in names] == [
        "embedding",
        "position",
        "projection",
        "scores",
        "scaling",
        "mask",
        "softmax",
        "context",
    ]
    assert [number for number, _ in names] == list("12345678")
    assert "big gives 0.2413 0.2311, as its notebook prints" in text
    assert "One fused call equals the stages" in text
    assert len(text.splitlines()) <= 60


def test_default_is_the_demo_with_timing(shown):
    text = shown()
    assert re.search(r"^  regard .* ms .* GFLOP/s +1\.0× ", text, re.MULTILINE)
    assert re.search(r"^  NumPy .* ms .* GFLOP/s +\d+\.\d× ", text, re.MULTILINE)
    assert "PyTorch" not in text
    assert f"target {regard.active_target()}" in text


def test_json_of_the_example(shown):
    result = json.loads(shown("--json"))
    tokens = EXAMPLE.split()
    stages = {name: as_array(values) for name, values in result["stages"].items()}
    x = embed(tokens) + regard.positional.sinusoidal(6, 3).astype(np.float32)
    generator = regard.TorchGenerator(123)
    query, key, value = (regard.matmul(x, generator.randn(3, 2)) for _ in range(3))
    output, weights = regard.scaled_dot_product_attention(
        query, key, value, is_causal=True, return_weights=True
    )
    assert result["tokens"] == tokens
    assert result["version"] == regard.__version__
    assert stages["embedding"][1].tolist() == embed(["big"])[0].tolist()
    np.testing.assert_array_equal(stages["query"], query)
    np.testing.assert_array_equal(stages["scores"], regard.matmul(query, key.T))
    np.testing.assert_array_equal(np.isnan(stages["masked_scores"]), ~regard.masks.causal(6))
    np.testing.assert_allclose(stages["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(stages["output"], output, atol=1e-6)
    assert result["check"]["passed"]
    assert result["check"]["output_difference"] <= 1e-6
    assert [round(number, 4) for number in result["notebook"]["output"]] == [0.2413, 0.2311]
    assert result["notebook"]["passed"]
    assert [row["engine"] for row in result["timing"]["rows"]] == ["regard", "NumPy"]
    assert result["timing"]["rows"][0]["ratio"] == 1.0
    for row in result["timing"]["rows"]:
        seconds = row["milliseconds"] / 1e3
        assert row["gflops"] == pytest.approx(result["timing"]["flops"] / seconds / 1e9)
        assert row["max_difference"] < 1e-5


def as_array(values):
    return np.array(values, dtype=np.float32)  # None becomes NaN


def test_json_keys_do_not_depend_on_the_sentence(shown):
    example = json.loads(shown("--json", "--no-timing"))
    other = json.loads(shown("--json", "--no-timing", "any words"))
    assert list(example) == list(other)
    assert list(example["stages"]) == list(other["stages"])
    assert (other["notebook"], other["timing"]) == (None, None)


def test_a_word_has_one_embedding_everywhere(shown):
    def embedding(*words):
        result = json.loads(shown("--json", "--no-timing", *words))
        return dict(zip(result["tokens"], result["stages"]["embedding"], strict=True))

    one, other = embedding("big regard"), embedding("so", "regard", "it", "big")
    assert one["regard"] == other["regard"]
    assert one["big"] == other["big"] == [np.float32(x) for x in (0.75, 0.20, 0.55)]
    # These digits are a promise: they change on no machine and with no version.
    assert embed(["regard"]).round(2).tolist() == embed(["regard"]).tolist()
    np.testing.assert_array_equal(embed(["attention"])[0], np.float32(ATTENTION))


ATTENTION = [0.87, 0.16, 0.29]


def test_composed_and_decomposed_spelling_is_one_word():
    assert tokenize("e\u0301migre\u0301") == tokenize("\u00e9migr\u00e9")


@pytest.mark.parametrize("words", [["alone"], ["a"] * 300])
def test_stages_equal_the_fused_call_for_any_length(shown, words):
    result = json.loads(shown("--json", "--no-timing", " ".join(words)))
    assert result["check"]["passed"]
    assert len(result["stages"]["output"]) == len(words)


def test_long_sentence_is_shown_in_part_and_says_so(shown):
    text = shown("--no-timing", *[f"w{i}" for i in range(60)])
    assert "The first 24 of 60 tokens are shown; all of them are computed." in text
    assert "60 × 60" in text
    assert "w23" in text
    assert "w25" not in text.split("weights")[1]


def test_a_failed_check_is_exit_status_1(monkeypatch):
    wrong = demo.Check(output_difference=float("nan"), weights_difference=0.0)
    monkeypatch.setattr(demo, "check_fused", lambda _stages: wrong)
    stream = io.StringIO()
    status = demo.run(Terminal(stream), None, threads=None, with_timing=False, as_json=False)
    assert status == 1
    assert "DIFFERS" in stream.getvalue()


# Other commands and arguments


@pytest.fixture
def fresh_config(output_of):
    """What a process sees in which no test has forced anything."""
    script = "import json, regard; print(json.dumps(regard.show_config(mode='dicts')))"
    return json.loads(output_of(script))


def test_info(shown, fresh_config):
    text = shown("info")
    config = fresh_config
    for word in (config["version"], config["compiler"], config["active_reason"]):
        assert word in text
    for target in config["targets"]:
        assert re.search(rf"{target['name']} .*run", text)


def test_info_says_what_a_target_needs_that_does_not_run(monkeypatch):
    from regard.cli import info

    config = regard.show_config(mode="dicts")
    row = {"name": "future", "runnable": False, "needs": "warp drive"}
    monkeypatch.setattr(
        regard, "show_config", lambda mode: config | {"targets": [row, *config["targets"]]}
    )
    stream = io.StringIO()
    assert info.run(Terminal(stream), as_json=False) == 0
    assert re.search("future .*does not run here +needs warp drive", stream.getvalue())


def test_info_json(shown, fresh_config):
    assert json.loads(shown("info", "--json")) == fresh_config
    assert shown("--json", "info") == shown("info", "--json")


def test_info_follows_the_environment(shown):
    result = json.loads(shown("info", "--json", REGARD_TARGET="baseline", REGARD_NUM_THREADS="3"))
    assert (result["active_target"], result["threads"]) == ("baseline", 3)
    assert "REGARD_TARGET" in result["active_reason"]
    assert "REGARD_NUM_THREADS" in result["threads_reason"]


@pytest.mark.parametrize("arguments", [["demo", "info"], ["--", "info"], ["demo", "--", "info"]])
def test_a_command_as_a_sentence(shown, arguments):
    assert json.loads(shown("--json", "--no-timing", *arguments))["tokens"] == ["info"]


def test_words_after_dashes_are_no_options(shown):
    result = json.loads(shown("--json", "--no-timing", "two", "--", "--json", "-x"))
    assert result["tokens"] == ["two", "--json", "-x"]


def test_threads(shown):
    result = json.loads(shown("--json", "--no-timing", "--threads", "1"))
    assert result["threads"] == 1


def test_version_and_help(shown):
    assert shown("--version") == f"regard {regard.__version__}\n"
    text = shown("--help")
    assert "info" in text
    assert "exit status" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "no words"),
        ([" \t\n"], "no words"),
        (["x " * (MAX_TOKENS + 1)], f"at most {MAX_TOKENS}"),
        (["--bogus"], "--bogus"),
        (["--threads", "0"], "from 1"),
        (["--threads", "many"], "whole number"),
        (["info", "is", "power"], "-- info is power"),
        (["info", "--threads", "2"], "--threads"),
        (["info", "--no-timing"], "--no-timing"),
    ],
)
def test_wrong_arguments_are_exit_status_2(cli, arguments, message):
    done = cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_tokenize_refuses_what_it_cannot_use():
    with pytest.raises(UnusableSentenceError, match="got 1025"):
        tokenize("x " * 1025)


# What a terminal gets


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


# Engines


FAKE_TORCH = """
    import contextlib, types
    import numpy as np

    class Tensor:
        def __init__(self, array): self.array = array
        def numpy(self): return self.array

    def attention(query, key, value):
        q, k, v = query.array, key.array, value.array
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        weights = np.exp(scores)
        return Tensor((weights / weights.sum(-1, keepdims=True)) @ v)

    print("torch says hello")
    __version__ = "0"
    def set_num_threads(threads): assert threads == 1
    from_numpy = Tensor
    inference_mode = contextlib.nullcontext
    functional = types.SimpleNamespace(scaled_dot_product_attention=attention)
    nn = types.SimpleNamespace(functional=functional)
"""


def test_pytorch_takes_part_where_it_is_installed(shown, torch_is):
    torch_is(FAKE_TORCH)
    result = json.loads(shown("--json", "--threads", "1"))
    assert [row["engine"] for row in result["timing"]["rows"]] == ["regard", "NumPy", "PyTorch"]
    assert result["timing"]["failed"] == {}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('a library\\n  is missing')", "ImportError: a library is missing"),
        ("import no_such_module", "no_such_module"),
        ("", "AttributeError"),
    ],
)
def test_pytorch_that_fails_leaves_the_others(shown, torch_is, source, reason):
    torch_is(source)
    result = json.loads(shown("--json"))
    assert [row["engine"] for row in result["timing"]["rows"]] == ["regard", "NumPy"]
    assert reason in result["timing"]["failed"]["PyTorch"]


def test_pytorch_that_fails_is_named(shown, torch_is):
    torch_is("raise ImportError('a library is missing')")
    assert "PyTorch failed: ImportError: a library is missing" in shown()


def test_a_crash_of_the_timing_is_exit_status_1(cli, torch_is):
    torch_is("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = cli()
    assert done.returncode == 1
    assert done.stderr == "regard: error: RuntimeError: the timing died of SIGKILL\n"
    assert "One fused call equals" in done.stdout


def test_an_exception_of_the_timing_is_exit_status_1(cli, torch_is):
    torch_is("raise SystemExit('no more')")
    done = cli("--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "regard: error: RuntimeError: the timing failed: no more\n"


def test_numpy_and_regard_agree():
    result = timing.measure(1)
    assert [row.engine for row in result.rows][:2] == ["regard", "NumPy"]
    assert all(row.max_difference < 1e-5 for row in result.rows)


def test_torch_is_imported_for_nothing_but_the_timing(cli, torch_is):
    torch_is("raise SystemExit('imported')")
    assert cli("--no-timing").returncode == 0
    assert cli("info").returncode == 0


# Endings


# As COMMAND, but answering Ctrl-C even where the tests run in the background, which ignores it.
LISTENING = [
    sys.executable,
    "-c",
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "runpy.run_module('regard', run_name='__main__', alter_sys=True)",
]


def test_ctrl_c_leaves_no_traceback(tmp_path, torch_is):
    torch_is(
        """
        import pathlib, time
        pathlib.Path("ready").touch()
        time.sleep(60)
        """
    )
    with subprocess.Popen(
        LISTENING,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (1, "regard: interrupted\n")
    assert "One fused call equals" in output


def test_ctrl_c_while_importing(run_python):
    done = run_python(
        """
        import sys
        from regard.cli import main

        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "regard.cli.commands":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupt())
        sys.exit(main(["info"]))
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "regard: interrupted\n")


def test_closed_pipe_leaves_no_traceback(tmp_path, torch_is):
    for arguments in (["--no-timing"], ["--no-timing", "--json"], ["info"], ["--help"]):
        with subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_full_disk_is_exit_status_1(tmp_path, torch_is):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "--no-timing"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert re.fullmatch(r"regard: error: OSError: .*\n", done.stderr)


def test_failure_is_one_line(run_python):
    script = """
        import sys
        import regard.cli.commands
        from regard.cli import main

        def fail(*_args, **_options):
            raise MemoryError("cannot\\n have \\x1b[31m it")

        regard.cli.commands.info.run = fail
        sys.exit(main(["info"]))
        """
    done = run_python(script)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "regard: error: MemoryError: cannot\\n have \\x1b[31m it\n"
    assert "Traceback" in run_python(script, "-X", "dev").stderr
