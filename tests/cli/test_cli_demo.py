"""Test the example: its stages, its checks, its JSON, and its timing."""

import json
import re

import numpy as np
import pytest

import regard
from regard._bench.engines import NumPy
from regard._cli.stages import EXAMPLE, embed
from stand_ins import engine_named


@pytest.mark.slow
def test_default_is_the_example_with_timing(process):
    done = process("--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"1 thread, target {regard.cpu_targets()[0]}" in done.stdout
    assert re.search(r"^  NumPy .* ms .* GFLOP/s +\d+\.\d×  ━", done.stdout, re.MULTILINE)


def test_json_of_the_example(shown, measured_here):
    measured_here(NumPy)
    result = json.loads(shown("--json", "--threads", "1"))
    tokens = EXAMPLE.split()
    # None becomes NaN.
    stages = {name: np.array(values, np.float32) for name, values in result["stages"].items()}
    x = embed(tokens) + regard.positional.sinusoidal(6, 3).astype(np.float32)
    generator = regard.TorchGenerator(123)
    query, key, value = (regard.matmul(x, generator.randn(3, 2)) for _ in range(3))
    output, weights = regard.scaled_dot_product_attention(
        query, key, value, is_causal=True, return_weights=True
    )
    assert result["tokens"] == tokens
    np.testing.assert_array_equal(stages["query"], query)
    np.testing.assert_array_equal(stages["scores"], regard.matmul(query, key.T))
    np.testing.assert_array_equal(np.isnan(stages["masked_scores"]), ~regard.masks.causal(6))
    np.testing.assert_allclose(stages["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(stages["output"], output, atol=1e-6)
    assert result["check"]["passed"]
    assert result["check"]["output_difference"] <= 1e-6
    assert [round(number, 4) for number in result["notebook"]["output"]] == [0.2413, 0.2311]
    assert result["notebook"]["passed"]
    timing = result["timing"]
    assert [row["engine"] for row in timing["rows"]] == ["regard", "NumPy"]
    assert all(row["error"] < 1e-5 for row in timing["rows"])


@pytest.mark.parametrize("words", [["alone"], ["a"] * 300])
def test_stages_equal_the_fused_call_for_any_length(shown, words):
    result = json.loads(shown("demo", "--json", "--no-timing", *words))
    assert result["check"]["passed"]
    assert len(result["stages"]["output"]) == len(words)


def test_a_failed_check_is_exit_status_1(run, monkeypatch):
    right = regard.softmax
    monkeypatch.setattr(regard, "softmax", lambda scores: np.nan * right(scores))
    status, text, _ = run("--no-timing")
    assert status == 1
    assert "DIFFERS" in text


def test_engines_that_fail_leave_the_others(shown, measured_here):
    measured_here(
        engine_named("NumPy"),
        engine_named("PyTorch", error=ImportError("a library\n is missing")),
        engine_named("ONNX Runtime", spoil=lambda output: -output),
    )
    text = shown()
    assert "PyTorch failed: ImportError: a library is missing" in text
    assert "ONNX Runtime failed: WrongResultError: off by" in text
    assert re.search(r"^  NumPy .* ms ", text, re.MULTILINE)
    timing = json.loads(shown("--json"))["timing"]
    assert [row["engine"] for row in timing["rows"]] == ["regard", "NumPy"]
    assert list(timing["failed"]) == ["PyTorch", "ONNX Runtime"]


def test_a_crash_of_the_timing_is_exit_status_1(process, without_peers):
    (without_peers / "torch.py").write_text("import os; os.kill(os.getpid(), 9)")
    done = process()
    assert done.returncode == 1
    assert done.stderr == "regard: error: RuntimeError: the timing was killed by SIGKILL\n"
    assert "One fused call equals" in done.stdout
