"""The timing of the main job: which engines take part, and what happens where one fails."""

import json

import pytest

from regard.cli import timing

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
