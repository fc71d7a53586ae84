"""The command line, run as a user runs it: the main job, the other commands, and how they end."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import regard
from command_line import COMMAND, ENVIRONMENT
from regard.cli import demo
from regard.cli.terminal import Terminal
from regard.cli.words import EXAMPLE, MAX_TOKENS, UnusableSentenceError, embed, tokenize

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
    result = json.loads(shown("demo", "--json", "--no-timing", " ".join(words)))
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


@pytest.mark.parametrize("arguments", [["demo", "alone"], ["--", "alone"], ["demo", "--", "alone"]])
def test_a_sentence_of_one_word(shown, arguments):
    assert json.loads(shown("--json", "--no-timing", *arguments))["tokens"] == ["alone"]


@pytest.mark.parametrize(
    "arguments", [["info", "--help"], ["-h", "info"], ["info", "--json", "-h"]]
)
def test_help_of_info(shown, arguments):
    text = shown(*arguments)
    assert text.startswith("usage: python -m regard info [-h] [--json]\n")
    assert "instruction" in text
    assert "--threads" not in text
    assert json.loads(shown("--json", "--no-timing", "--", "info", "--help"))["tokens"] == [
        "info",
        "--help",
    ]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["demo", "--help"], ["demo", "-h", "x"]])
def test_help(shown, arguments):
    assert shown(*arguments) == shown("--help")


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
        (["mistyped"], "no command 'mistyped', only demo, info, bench; "),
        (["bnech", "--threads", "2"], "one word: python -m regard demo bnech"),
        (["--json", " inof "], "no command 'inof', only"),
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
