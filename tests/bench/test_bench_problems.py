"""Test the problems: their arrays, their work, and the rows computed in float64."""

import tempfile

import numpy as np
import pytest
from benchmarks.table.attention import Variant
from benchmarks.table.caches import Append, CachedAttention, NoRoomError
from benchmarks.table.stages import ApplyMask, Matmul, Scale, Softmax

import reference
from regard._bench.engines import Regard
from regard._bench.problems import Attention


@pytest.mark.parametrize(
    ("problem", "flops", "size"),
    [
        (Matmul(3, 5, 7), 2 * 3 * 5 * 7, 4 * (15 + 35 + 21)),
        (Matmul(3, 5, 7, batch=4), 8 * 3 * 5 * 7, 16 * (15 + 35 + 21)),
        (Softmax(3, 5), 0, 2 * 60),
        (Scale(3, 5), 0, 2 * 60),
        (ApplyMask(3, 5), 0, 2 * 60 + 15),
        (Variant(1, 2, 1, 4, 6, 8, dtype="float16"), 4 * 2 * 24 * 8, 2 * 6 * 8 * 2),
        (Attention(1, 2, 1, 4, 6, 8, 3), 2 * 2 * 24 * (8 + 3), 6 * (8 + 3) * 4),
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
    Variant(1, 2, 1, 9, 9, 4, window=(2, 1)),
    Variant(1, 2, 2, 6, 6, 4, window=(255, 0)),
    Variant(1, 2, 2, 12, 16, 4, mask_block=4),
    Variant(2, 2, 1, 5, 6, 3, is_strided=True),
    Attention(1, 4, 2, 1, 9, 3),
    Attention(1, 4, 2, 5, 6, 3, value_dim=7),
]


def visible(problem, mask=None):
    """Return which keys each query sees, pair by pair."""
    seen = np.ones((problem.q_len, problem.kv_len), dtype=bool)
    for query, key in np.ndindex(seen.shape):
        if problem.is_causal and key > query:
            seen[query, key] = False
        window = getattr(problem, "window", None)
        if window and not -window[0] <= key - query <= window[1]:
            seen[query, key] = False
    return seen if mask is None else seen & mask


@pytest.mark.parametrize("problem", SMALL)
def test_sampled_rows_are_those_of_the_oracle(problem):
    query, key, value, *mask = inputs = problem.make_inputs()
    seen = visible(problem, *mask)
    exact = reference.attention(query, key, value, seen).output
    index, rows = problem.sample(inputs)
    assert rows.shape[:2] == (problem.batch, problem.heads)
    np.testing.assert_allclose(rows, exact[index], rtol=1e-12)


@pytest.mark.parametrize("problem", [one for one in SMALL if not one.is_causal])
def test_only_what_is_visible_is_counted(problem):
    pairs = visible(problem, *problem.make_inputs()[3:]).sum()
    columns = problem.head_dim + (problem.value_dim or problem.head_dim)
    assert problem.flops == problem.batch * problem.heads * pairs * 2 * columns


def test_a_block_mask_leaves_half_of_the_blocks_of_every_row():
    problem = Variant(1, 1, 1, 512, 1024, 4, mask_block=128)
    mask = problem.make_inputs()[3]
    blocks = mask[::128, ::128]
    np.testing.assert_array_equal(mask, np.kron(blocks, np.ones((128, 128), dtype=bool)))
    assert blocks.sum(axis=1).tolist() == [4, 4, 4, 4]
    assert len(np.unique(blocks, axis=0)) > 1


def test_strided_inputs_are_views_of_length_first_storage():
    query, key, _, _ = Variant(2, 4, 2, 5, 5, 8, is_strided=True).make_inputs()
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
    call = problem.on(Regard(1), inputs)
    index, rows = problem.sample(inputs)
    assert not any(tmp_path.iterdir())
    for _ in range(3):  # each call leaves room for the next
        np.testing.assert_allclose(call()[index], rows, rtol=2e-3, atol=2e-3)


def test_a_mapped_cache_needs_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    problem = CachedAttention(1, 8, 8, 1, 4, 128, repeats=1 << 40, is_mapped=True)
    assert problem.bytes == 2 * 8 * 4 * 128 * 4 << 40
    with pytest.raises(NoRoomError, match=r"it needs \d+\.\d GB of disk and of memory, but"):
        problem.on(Regard(1), problem.make_inputs())
    assert not any(tmp_path.iterdir())


def test_inputs_are_the_same_every_time():
    for problem in (SMALL[4], Matmul(3, 4, 5), Softmax(2, 3), ApplyMask(2, 3)):
        for one, other in zip(problem.make_inputs(), problem.make_inputs(), strict=True):
            np.testing.assert_array_equal(one, other)
