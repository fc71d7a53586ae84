"""What `python -m regard bench` times: the table, what is counted, and the engines."""

import dataclasses
import re
import tempfile

import numpy as np
import pytest

import reference
from regard import _core
from regard.cli import engines
from regard.cli.bench import measure
from regard.cli.bench.cases import CASES, COMPARISONS, DECODE, FORWARD, select
from regard.cli.cached_problems import Append, CachedAttention, NoRoomError
from regard.cli.engines import NotInstalledError, NotTimedError
from regard.cli.problems import Attention, Matmul, Softmax
from stand_ins import FakeEngine

# The limits of the machine


@pytest.mark.parametrize("threads", [1, 2, None])
def test_limits_are_rates(target, threads):
    assert 1e8 < _core.fma_peak(False, threads) < 1e14
    assert 1e7 < _core.read_bandwidth(1 << 20, threads) < 1e14


def test_read_bandwidth_reads_every_share_whole():
    for size in (512, 513, 1024 * 3, (1 << 16) + 5):  # shares of odd sizes, one of a single step
        assert _core.read_bandwidth(size, 1) > 0
    assert _core.read_bandwidth(512 * 7, 7) > 0


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
            r"cannot allocate 4611686018427387904 bytes of memory to be read",
        ),
    ],
)
def test_read_bandwidth_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        _core.read_bandwidth(*arguments)


# The table


def test_names_are_unique():
    names = [row.name for row in (*CASES, *COMPARISONS)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", [case for case in CASES if case.group is FORWARD])
def test_a_name_says_how_many_operations(case):
    batch, heads, kv_heads, length, dim, causal = re.fullmatch(
        r"(\d+)x(\d+)(?:/(\d+))?x(\d+)x(\d+)( causal)?", case.name
    ).groups()
    problem = case.problem
    # A dot product takes a multiplication and an addition a dimension, and each of the two products
    # has one a pair.
    pairs = int(length) * int(length) / (2 if causal else 1)
    operations = int(batch) * int(heads) * pairs * (int(dim) + int(dim)) * 2
    assert problem.flops == operations
    assert problem.kv_heads == int(kv_heads or heads)
    assert problem.is_causal == bool(causal)


@pytest.mark.parametrize("case", [case for case in CASES if case.group is DECODE])
def test_a_name_says_how_many_bytes(case):
    batch, heads, kv_heads, length, dim = map(
        int, re.fullmatch(r"decode (\d+)x(\d+)/(\d+)x(\d+)x(\d+)", case.name).groups()
    )
    query, key, value, _ = dataclasses.replace(case.problem, kv_len=2).make_inputs()
    assert case.problem.bytes == (key.nbytes + value.nbytes) // 2 * length
    assert query.shape == (batch, heads, 1, dim)
    assert key.shape == (batch, kv_heads, 2, dim)


@pytest.mark.parametrize(
    ("problem", "flops", "size"),
    [
        (Matmul(3, 5, 7), 2 * 3 * 5 * 7, 4 * (15 + 35 + 21)),
        (Matmul(3, 5, 7, batch=4), 8 * 3 * 5 * 7, 16 * (15 + 35 + 21)),
        (Softmax(3, 5), 0, 2 * 60),
        (Attention(1, 2, 1, 4, 6, 8, dtype="float16"), 4 * 2 * 24 * 8, 2 * 6 * 8 * 2),
        (CachedAttention(1, 2, 1, 4, 6, 8), 4 * 2 * 24 * 8, 2 * 6 * 8 * 4),
        (CachedAttention(1, 2, 1, 4, 6, 8, storage="float16"), 4 * 2 * 24 * 8, 2 * 6 * 8 * 2),
        (CachedAttention(1, 2, 1, 4, 6, 8, storage="int8"), 4 * 2 * 24 * 8, 2 * 6 * (8 + 4)),
    ],
)
def test_work(problem, flops, size):
    assert (problem.flops, problem.bytes) == (flops, size)


SMALL = [
    Attention(2, 4, 2, 7, 7, 5),
    Attention(1, 3, 3, 8, 8, 4, is_causal=True),
    Attention(1, 2, 1, 9, 9, 4, window=(2, 1)),
    Attention(1, 2, 2, 6, 6, 4, window=(255, 0)),
    Attention(1, 2, 2, 12, 16, 4, mask_block=4),
    Attention(2, 2, 1, 5, 6, 3, is_strided=True),
    Attention(1, 4, 2, 1, 9, 3),
]


def visible(problem, mask):
    """Which keys each query sees, pair by pair."""
    seen = np.ones((problem.q_len, problem.kv_len), dtype=bool)
    for query, key in np.ndindex(seen.shape):
        if problem.is_causal and key > query:
            seen[query, key] = False
        if problem.window and not -problem.window[0] <= key - query <= problem.window[1]:
            seen[query, key] = False
    return seen if mask is None else seen & mask


@pytest.mark.parametrize("problem", SMALL)
def test_sampled_rows_are_those_of_the_oracle(problem):
    query, key, value, mask = inputs = problem.make_inputs()
    seen = visible(problem, mask)
    exact = reference.attention(query, key, value, seen).output
    index, rows = problem.sample(inputs)
    assert rows.shape[:2] == (problem.batch, problem.heads)
    np.testing.assert_allclose(rows, exact[index], rtol=1e-12)


@pytest.mark.parametrize("problem", [one for one in SMALL if not one.is_causal])
def test_only_what_is_visible_is_counted(problem):
    mask = problem.make_inputs()[3]
    pairs = visible(problem, mask).sum()
    assert problem.flops == problem.batch * problem.heads * pairs * 4 * problem.head_dim


def test_a_block_mask_leaves_half_of_the_blocks_of_every_row():
    problem = Attention(1, 1, 1, 512, 1024, 4, mask_block=128)
    mask = problem.make_inputs()[3]
    blocks = mask[::128, ::128]
    np.testing.assert_array_equal(mask, np.kron(blocks, np.ones((128, 128), dtype=bool)))
    assert blocks.sum(axis=1).tolist() == [4, 4, 4, 4]
    assert len(np.unique(blocks, axis=0)) > 1


def test_strided_inputs_are_views_of_length_first_storage():
    query, key, _, _ = Attention(2, 4, 2, 5, 5, 8, is_strided=True).make_inputs()
    assert query.shape == (2, 4, 5, 8)
    assert query.strides == (5 * 4 * 8 * 4, 8 * 4, 4 * 8 * 4, 4)
    assert key.strides == (5 * 2 * 8 * 4, 8 * 4, 2 * 8 * 4, 4)


CACHED = [
    CachedAttention(2, 4, 2, 1, 9, 4),
    CachedAttention(1, 4, 2, 1, 9, 4, storage="float16"),
    CachedAttention(1, 4, 2, 1, 9, 4, repeats=3),
    CachedAttention(1, 4, 2, 1, 9, 4, repeats=3, is_mapped=True),
    CachedAttention(1, 4, 2, 7, 7, 4, is_causal=True),
    Append(2, 9, 4),
    Append(2, 9, 4, evicts=True),
]


@pytest.mark.parametrize("problem", CACHED)
def test_a_cache_gives_what_the_oracle_gives(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inputs = problem.make_inputs()
    call = problem.on(engines.Regard(1), inputs)
    index, rows = problem.sample(inputs)
    assert not any(tmp_path.iterdir())
    for _ in range(3):  # a call leaves room for the next
        np.testing.assert_allclose(call()[index], rows, rtol=2e-3, atol=2e-3)


def test_a_mapped_cache_needs_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    problem = CachedAttention(1, 8, 8, 1, 4, 128, repeats=1 << 40, is_mapped=True)
    assert problem.bytes == 2 * 8 * 4 * 128 * 4 << 40
    with pytest.raises(NoRoomError, match=r"it takes \d+\.\d GB of disk and of memory, and"):
        problem.on(engines.Regard(1), problem.make_inputs())
    assert not any(tmp_path.iterdir())


def test_what_is_resident_is_not_copied():
    problem = Attention(1, 4, 2, 1, 9, 3, is_resident=True)
    assert len(measure.make_sets(problem, 1 << 20)) == 1


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Attention(1, 1, 1, 2, 2, 4, dtype="float16"), "float16"),
        (Attention(1, 1, 1, 2, 2, 4, precision="int8"), "int8"),
        (CachedAttention(1, 1, 1, 1, 2, 4, storage="int8"), "int8"),
        (Append(1, 2, 4), "float32"),
    ],
)
def test_an_output_may_be_as_coarse_as_its_numbers(problem, name):
    assert measure._rounding(problem, problem.make_inputs()) == name


def test_inputs_are_the_same_every_time():
    for problem in (SMALL[4], Matmul(3, 4, 5), Softmax(2, 3)):
        for one, other in zip(problem.make_inputs(), problem.make_inputs(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_decoding_goes_round_more_keys_than_a_cache_holds():
    problem = Attention(1, 4, 2, 1, 9, 3)
    sets = measure.make_sets(problem, 10 * problem.bytes - 1)
    assert len(sets) == 10
    assert len({id(array) for _, key, value, _ in sets for array in (key, value)}) == 20
    assert len(measure.make_sets(SMALL[0], 1 << 20)) == 1
    called = []
    engine = FakeEngine(1, on_call=lambda query, key, *_: called.append(id(key)))
    call = measure.runner_of(engine, problem, sets).call
    for _ in range(20):
        call()
    assert called == [id(key) for _, key, _, _ in sets] * 2


@pytest.mark.parametrize(
    ("names", "quick", "expected"),
    [
        (["notebook 6x2"], False, ["notebook 6x2"]),
        (["1X8X64"], False, ["1x8x64x64"]),
        (["1x8x8192x64", "NOTE"], False, ["notebook 6x2", "1x8x8192x64"]),
        (["window"], True, ["window 256 1x4x65536x64"]),
        (["1x12x1024x64 causal"], False, ["1x12x1024x64 causal"]),  # a whole name: it and no other
        ([], False, [row.name for row in (*CASES, *COMPARISONS) if "4 GB" not in row.name]),
        (["4 GB"], False, ["mapped file 4 GB 1x8/8x524288"]),
        ([], True, [row.name for row in (*CASES, *COMPARISONS) if row.is_quick]),
    ],
)
def test_select(names, quick, expected):
    cases, comparisons = select(names, quick=quick)
    assert [row.name for row in (*cases, *comparisons)] == expected


# The engines


@pytest.fixture
def torch_threads():
    """Leave PyTorch with the threads that it had."""
    try:
        import torch
    except ImportError:
        yield
    else:
        threads = torch.get_num_threads()
        yield
        torch.set_num_threads(threads)


@pytest.mark.parametrize("load", engines.ENGINES)
@pytest.mark.parametrize(
    "problem",
    [
        Attention(2, 4, 2, 7, 7, 5),
        Attention(1, 3, 3, 8, 8, 4, is_causal=True),
        Attention(1, 4, 2, 6, 6, 4, is_causal=True),
        Attention(1, 4, 2, 1, 9, 3),
        Matmul(3, 5, 7),
        Matmul(3, 5, 7, batch=4),
        Softmax(3, 5),
    ],
)
def test_engines_compute_the_same(load, problem, torch_threads):
    try:
        engine = load(1)
    except NotInstalledError as error:
        pytest.skip(f"{error} is not installed")
    inputs = problem.make_inputs()
    index, expected = problem.sample(inputs)
    with engine.around():
        output = engine.as_array(problem.on(engine, inputs)())
    assert output.dtype == np.float32
    np.testing.assert_allclose(output[index], expected, rtol=1e-5, atol=1e-6)


def test_numpy_is_not_asked_for_more_scores_than_fit():
    inputs = Attention(1, 1, 1, 2, 2, 2).make_inputs()
    large = Attention(1, 8, 8, 8192, 8192, 64)
    assert large.score_bytes == 8 * 8192 * 8192 * 4
    with pytest.raises(NotTimedError, match=r"its scores take 2\.1 GB"):
        large.on(engines.NumPy(1), inputs)
    whole = next(case.problem for case in CASES if case.name == "2x8x4096x40")
    assert whole.score_bytes == engines.MAX_SCORE_BYTES  # and this one is asked


def test_an_engine_without_what_it_needs_names_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(engines.importlib, "import_module", missing)
    with pytest.raises(NotInstalledError, match="torch"):
        engines.PyTorch(1)
    with pytest.raises(NotInstalledError, match="onnxruntime"):
        engines.OnnxRuntime(1)
