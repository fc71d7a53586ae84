"""Wrong arguments of commands, which end with status 2 and tell the argument and what is needed."""

import pytest

from messages import check, each
from regard._bench.problems import parse_shape
from regard._cli import main

SHAPES = [
    (lambda: parse_shape("1,8,0,64"), ValueError, "sizes must be whole numbers"),
    (lambda: parse_shape("1,8,512"), ValueError, "must be"),
    (lambda: parse_shape("1,8/,4,64"), ValueError, "must be"),
    (lambda: parse_shape("2/1,8,4,64"), ValueError, "batch must be one size, got '2/1,8,4,64'"),
    (lambda: parse_shape("1,8/3,4,64"), ValueError, "heads must be a multiple of ... got 8 and"),
    (lambda: parse_shape("9999,9999,9999,9999"), ValueError, "9999x9999x9999x9999 needs"),
]
COMMANDS = [
    (["bench", "--rounds", "0"], "argument --rounds: must be from 1 to 1000, got 0"),
    (["bench", "--target", "vax"], "argument --target: must be one that runs here ("),
    (["bench", "--json", "/no/such/place.json"], "path must be in a folder that exists"),
    (["bench", "--json", "."], "path must name a file, got the folder '.'"),
    (["bench", "--plot", "a.gif"], "must end in .png, .svg, .pdf, got 'a.gif'"),
    (["bench", "--causal"], "argument --causal: needs --shape"),
    (["bench", "--shape", "\x1b[31mred"], r"'\x1b[31mred'"),
    (["bench", "word"], "unrecognized arguments: word"),
    ([""], "no words"),
    (["x " * 1025], "at most 1024"),
    (["--bogus"], "--bogus"),
    (["--threads", "0"], "argument --threads: must be from 1 to 4096, got 0"),
    (["mistyped"], "'mistyped' is not a command"),
    (["explore"], "the following arguments are required: text"),
    (["explore", "none.safetensors", "a text"], "'none.safetensors' is not a file: name a GGUF"),
    (["explore", "--smollm2", " "], "argument text: the text has no words"),
    (["explore", "--smollm2", "a", "-o", "no/page.html"], "path must be in a folder that exists"),
    (["explore", "--smollm2", "a", "--layers", "5-3"], "must have increasing ranges, up to 9999"),
    (["explore", "--smollm2", "a", "--detail", "8"], "--detail: must be from 16 to 8192, got 8"),
    (["explore", "--smollm2", "a", "--max-mb", "0"], "--max-mb: must be from 1 to"),
    (["generate", "none.gguf", "a"], "'none.gguf' is not a file"),
]


@each(SHAPES)
def test_shapes(wrong, error, parts):
    check(wrong, error, parts)


@pytest.mark.parametrize(("arguments", "message"), COMMANDS)
def test_commands(arguments, message, capsys):
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert message in " ".join(capsys.readouterr().err.split())
