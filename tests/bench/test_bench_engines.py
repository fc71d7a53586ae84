"""The engines compute the same results."""

import numpy as np
import pytest
from benchmarks.table.cases import CASES
from benchmarks.table.stages import ApplyMask, Matmul, Scale, Softmax

from regard import _core
from regard._bench import engines
from regard._bench.engines import ENGINES, LeftOutError, NumPy, OnnxRuntime
from regard._bench.problems import Attention


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((511, 1), ValueError, "bytes must be at least 512 for each of the 1 threads, got 511"),
        ((1024, 3), ValueError, "for each of the 3 threads, got 1024"),
        ((-1, 1), ValueError, "got -1"),
        ((1 << 20, 0), ValueError, "threads must be at least 1, got 0"),
        ((1e6, 1), TypeError, "bytes must be an integer, got float"),
        (
            (1 << 62, 1),
            MemoryError,
            "cannot allocate 4611686018427387904 bytes of",
        ),
    ],
)
def test_read_bandwidth_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        _core.read_bandwidth(*arguments)


@pytest.fixture
def torch_threads():
    """Restore PyTorch's number of threads."""
    try:
        import torch
    except ImportError:
        yield
    else:
        threads = torch.get_num_threads()
        yield
        torch.set_num_threads(threads)


@pytest.mark.parametrize("load", ENGINES)
@pytest.mark.parametrize(
    "problem",
    [
        Attention(2, 4, 2, 7, 7, 5),
        Attention(1, 3, 3, 8, 8, 4, is_causal=True),
        Attention(1, 4, 2, 6, 6, 4, is_causal=True),
        Attention(1, 4, 2, 1, 9, 3),
        Attention(1, 4, 2, 5, 9, 3, value_dim=7),
        Matmul(3, 5, 7),
        Matmul(3, 5, 7, batch=4),
        Softmax(3, 5),
        Softmax(3, 5, axis=0),
        Scale(3, 5),
        ApplyMask(3, 5),
    ],
)
def test_engines_compute_the_same(load, problem, torch_threads):
    try:
        engine = load(1)
    except ModuleNotFoundError as error:
        if error.name not in load.packages:
            raise
        pytest.skip(f"{error.name} is not installed")
    inputs = problem.make_inputs()
    index, expected = problem.sample(inputs)
    with engine.context():
        output = engine.as_array(problem.on(engine, inputs)())
    assert output.dtype == np.float32
    np.testing.assert_allclose(output[index], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("load", "length", "size"), [(NumPy, 8192, r"2\.1 GB"), (OnnxRuntime, 16384, r"8\.6 GB")]
)
def test_an_engine_that_stores_scores_is_not_asked_for_too_many(load, length, size):
    query = np.broadcast_to(np.float32(0), (1, 8, length, 64))
    with pytest.raises(LeftOutError, match=f"memory: its scores need {size}"):
        load.attention(load.__new__(load), query, query, query)


def test_scores_take_at_most_a_quarter_of_the_free_memory(monkeypatch):
    query = np.zeros((1, 1, 16, 4), dtype=np.float32)
    monkeypatch.setattr(engines, "available_memory", lambda: 4 * 16 * 16 * 4)
    NumPy(1).attention(query, query, query)
    monkeypatch.setattr(engines, "available_memory", lambda: 4 * 16 * 16 * 4 - 1)
    with pytest.raises(LeftOutError):
        NumPy(1).attention(query, query, query)


def test_numpy_computes_every_case_whose_scores_it_may_store():
    largest = next(case.problem for case in CASES if case.name == "2x8x4096x40")
    assert 4 * largest.batch * largest.heads * largest.visible == NumPy.max_score_bytes
