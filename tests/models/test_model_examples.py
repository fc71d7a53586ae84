"""Test what the examples with real models print."""

import subprocess
import sys
import wave

import numpy as np
import pytest

from model_files import EXAMPLES


@pytest.fixture
def run(tmp_path):
    """Run an example away from the source tree."""

    def run(name, *arguments):
        return subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def output_of(run):
    def output_of(name, *arguments):
        done = run(name, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return output_of


def test_generate(output_of, smollm2_path):
    text, said = output_of("generate.py", "Once upon a time", "--tokens", "8")
    assert text == "Once upon a time, the city of Nova Haven was a\n"
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][:2] == ["memory", "about"]
    assert lines[1][:2] == ["time", "about"]
    assert [line[:3] for line in lines[2:4]] == [
        ["prefill", "4", "tokens"],
        ["decode", "8", "tokens"],
    ]
    assert lines[4][0] == "cache"
    foretold, needed = int(lines[0][2]), int(lines[5][1])
    assert lines[5][0] == "peak"
    assert needed < 300
    assert 0.9 * needed <= foretold <= 1.15 * needed


@pytest.mark.parametrize("weights", ["float32", "float16", "bfloat16"])
def test_generate_with_other_weights(weights, output_of, smollm2_path):
    if weights == "bfloat16":
        pytest.importorskip("ml_dtypes")
    text, _ = output_of("generate.py", "--weights", weights, "--tokens", "8")
    assert text == "Once upon a time, the city of Nova Haven was a\n"


def test_generate_draws_by_chance_and_stops_at_the_end(output_of, smollm2_path):
    prompt = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"
    greedy, said = output_of("generate.py", prompt, "--tokens", "90")
    assert int(said.splitlines()[3].split()[1]) < 90
    drawn = [
        output_of("generate.py", prompt, "--tokens", "6", "--temperature", "2", "--seed", seed)[0]
        for seed in ("0", "0", "1")
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert greedy not in drawn


def test_similar(output_of, minilm_path):
    text, said = output_of("similar.py")
    lines = text.splitlines()
    assert lines[0] == "How do I get my money back?"
    assert "You may return what you bought" in lines[1]
    assert "Refunds are paid" in lines[2]
    assert "Our shop opens" in lines[5]
    assert not said
    asked = ("A cat sleeps.", "Stocks fell.", "The kitten is asleep.")
    assert "kitten" in output_of("similar.py", *asked)[0].splitlines()[1]


def test_transcribe(output_of, whisper_path, recording):
    text, said = output_of("transcribe.py")
    assert text == "Ever tried, ever failed. No matter, try again. Fail again. Fail better.\n"
    assert not said


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no sound at all" * 9, "wrong rate", None])
def test_transcribe_refuses_what_is_no_recording(content, run, tmp_path, whisper_path):
    path = tmp_path / "sound.wav"
    if content == "wrong rate":
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", None))
            file.writeframes(np.zeros(80, "<i2"))
    elif content is not None:
        path.write_bytes(content)
    done = run("transcribe.py", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{path} ")
    assert done.stderr.count("\n") == 1
