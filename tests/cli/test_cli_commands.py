"""Test the commands: which command runs, the output of info, help, and wrong arguments."""

import json
import re

import pytest

import regard
from regard._cli.stages import MAX_TOKENS


def test_info(shown):
    text = shown("info")
    config = regard.show_config(mode="dicts")
    for word in (config["version"], config["compiler"], config["active_reason"]):
        assert word in text
    for target in config["targets"]:
        assert re.search(rf"{target['name']} .*run", text)


def test_info_json(shown):
    assert json.loads(shown("info", "--json")) == regard.show_config(mode="dicts")


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
        (["demo", "info"], ["info"]),
        (["demo", "bench", "info"], ["bench", "info"]),
    ],
)
def test_a_sentence(shown, arguments, tokens):
    assert json.loads(shown(*arguments, "--json", "--no-timing"))["tokens"] == tokens


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["demo", "info", "bench", "exit status", "REGARD_NUM_THREADS"]),
        (["demo", "--help"], ["--no-timing", "--threads", "--json"]),
        (["bench", "--help"], ["--shape", "--curve", "batch,heads[/kv_heads]", "fma peak"]),
    ],
)
def test_help_is_short_and_fits(shown, arguments, words):
    text = shown(*arguments)
    assert [word for word in words if word not in text] == []
    assert len(text.splitlines()) <= 70
    assert max(map(len, text.splitlines())) <= 90


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "no words"),
        (["x " * (MAX_TOKENS + 1)], f"at most {MAX_TOKENS}"),
        (["--threads", "0"], "argument --threads: must be from 1 to 4096, got 0"),
        (["bnech", "--threads", "2"], "one word: python -m regard demo bnech"),
        (["info", "--threads", "2"], "--threads"),
        (["info", "\x1b[31mred\x07"], r"\x1b[31mred\x07"),
    ],
)
def test_wrong_arguments_are_exit_status_2(run, arguments, message):
    status, output, errors = run(*arguments)
    assert (status, output) == (2, "")
    assert message in errors
    assert not set("\x1b\x07") & set(errors)
