"""Test that `explain` counts what the call computes: the tiles that some query sees."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import regard
from drawn_problems import examples, problems
from reference import solve


def normal(dtype, *shapes):
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes)


def plain(dtype=np.float32, *, q_len=300, kv_len=700):
    return normal(dtype, (2, 4, q_len, 16), (2, 2, kv_len, 16), (2, 2, kv_len, 12))


def one_head(kv_len, heads=1):
    return normal(np.float32, (heads, 1, 64), (heads, kv_len, 64), (heads, kv_len, 64))


def test_threads_that_share_the_keys_of_one_head(target):
    whole = regard.explain(*one_head(4000), threads=1)
    shared = regard.explain(*one_head(4000), threads=4)
    assert (whole.threads, whole.tasks, whole.chunk_keys) == (1, 1, 0)
    assert (shared.threads, shared.tasks, shared.chunk_keys) == (3, 3, 1536)
    assert shared.workspace_bytes == (1 + 3) * whole.workspace_bytes
    assert "3 chunks of up to 1,536 keys of one key head" in str(shared)
    assert "1 query x 4,000 keys, head_dim 64" in str(whole)


@pytest.mark.parametrize(
    ("heads", "kv_len", "options", "shape"),
    [
        (2, 6000, {"threads": 2}, (2, 2, 0)),
        (1, 1600, {"threads": 2}, (2, 2, 1536)),
        (1, 6000, {"threads": 2, "key_lengths": 3000}, (2, 2, 1536)),
        (1, 6000, {"threads": 2, "key_lengths": 0}, (1, 1, 0)),
        (9, 6000, {"threads": 2}, (2, 9, 0)),
    ],
)
def test_who_shares_what(heads, kv_len, options, shape, target):
    found = regard.explain(*one_head(kv_len, heads), **options)
    assert (found.threads, found.tasks, found.chunk_keys) == shape


@hypothesis.given(
    problem=problems(mixed=False, dropout=False, ends=False), threads=st.sampled_from([1, 2, 3, 16])
)
@examples(150)
def test_explanations_of_everything(target, problem, threads):
    """Everything visible is counted."""
    explanation = regard.explain(*problem.arrays, **problem.options, threads=threads)
    seen = solve(*problem.arrays, **problem.options).seen
    assert explanation.tiles_biased <= explanation.tiles_computed <= explanation.tiles
    work = 2 * explanation.scores_computed * (problem.query.shape[-1] + problem.value.shape[-1])
    assert explanation.flops == work
    assert seen.sum() <= explanation.scores_computed <= seen.size
    sizes = explanation.q_len, explanation.kv_len, explanation.head_dim, explanation.value_dim
    assert sizes == (*seen.shape[-2:], problem.query.shape[-1], problem.value.shape[-1])
    assert (explanation.heads, explanation.batch) == (seen.shape[-3], np.prod(problem.batch))
    assert explanation.result_type == problem.query.dtype.name
    text = str(explanation)
    words = target, explanation.result_type, f"{explanation.kv_len} key"
    for word in (*words, f"{explanation.scores_computed:,} of"):
        assert word in text


def test_bytes_and_threads(target):
    arrays = plain()
    mask = np.ones((300, 700), bool)
    output = regard.scaled_dot_product_attention(*arrays, mask)
    explanation = regard.explain(*arrays, mask, threads=1)
    assert explanation.bytes == sum(x.nbytes for x in (*arrays, mask, output))
    assert explanation.threads == 1
    assert 0 < explanation.workspace_bytes < 2 << 20
    assert regard.explain(*arrays, threads=3).threads <= 3
    decode = normal(np.float32, (1, 8, 1, 128), (1, 8, 1024, 128), (1, 8, 1024, 128))
    assert regard.explain(*decode, threads=1).workspace_bytes < 135_000


def test_what_is_broadcast_is_one_piece_of_memory(dtype, target):
    query, key, value = normal(dtype, (2, 4, 30, 16), (1, 2, 70, 16), (70, 16))
    mask = np.ones((30, 1), bool)
    spread = (
        query,
        np.broadcast_to(key, (2, 2, 70, 16)),
        np.broadcast_to(value, (2, 2, 70, 16)),
        np.broadcast_to(mask, (2, 4, 30, 70)),
    )
    output = regard.scaled_dot_product_attention(*spread)
    wanted = sum(x.nbytes for x in (query, key, value, mask, output))
    assert regard.explain(*spread).bytes == wanted
    turned = [x.swapaxes(-1, -2).copy().swapaxes(-1, -2)[..., ::-1, :] for x in spread[:3]]
    assert regard.explain(*turned).bytes == sum(x.nbytes for x in (*turned, output))


def test_what_is_read_in_place_is_not_converted(target):
    """A mask is read in place, with either spelling of the native byte order. Overlapping windows
    of one array count as that array."""
    x = np.zeros((1, 64, 16), np.float32)
    order = "<" if np.little_endian else ">"
    masks = [np.zeros((64, 64), kind) for kind in ("f4", "f8", order + "f4", bool, "f2")]
    for mask in masks:
        notes = " ".join(regard.explain(x, x, x, mask).notes)
        assert "converted" not in notes
        assert ("a float mask is added" in notes) == (mask.dtype.kind == "f")
    for mask, why in (
        (masks[0].astype(masks[0].dtype.newbyteorder()), "byte order"),
        (np.zeros(64 * 64 * 4 + 1, np.uint8)[1:].view("f4").reshape(64, 64), "not aligned"),
        (masks[3].tolist(), "list"),
    ):
        notes = [note for note in regard.explain(x, x, x, mask).notes if "mask was conv" in note]
        assert why in notes[0]
    line = np.zeros(2 * 64 - 1, np.float32)
    toeplitz = np.lib.stride_tricks.as_strided(line[63:], (64, 64), (-4, 4))
    found = regard.explain(x, x, x, toeplitz)
    assert found.bytes == 4 * x.nbytes + line.nbytes
    assert not any("converted" in note for note in found.notes)


def test_the_workspace_is_told_without_being_taken(target):
    """The workspace would be larger than memory. The call and the explanation both say so."""
    x = np.broadcast_to(np.float32(1), (1, 2**40))
    explanation = regard.explain(x, x, np.ones((1, 1), np.float32), threads=1)
    assert explanation.workspace_bytes > 2**40 * 4 * 2
    assert (explanation.head_dim, explanation.scores_computed) == (2**40, 1)
    with pytest.raises(MemoryError, match=f" {explanation.workspace_bytes} bytes of workspace"):
        regard.scaled_dot_product_attention(x, x, np.ones((1, 1), np.float32), threads=1)


def test_nothing_to_compute(target):
    for shapes in (
        ((2, 0, 8), (2, 7, 8), (2, 7, 4)),
        ((2, 5, 8), (2, 0, 8), (2, 0, 4)),
        ((0, 2, 5, 8), (0, 1, 7, 8), (0, 1, 7, 4)),
        ((2, 0, 5, 8), (2, 0, 7, 8), (2, 0, 7, 4)),
    ):
        explanation = regard.explain(*(np.ones(shape, np.float32) for shape in shapes))
        assert explanation.tiles_computed == explanation.scores_computed == explanation.flops == 0
        text = str(explanation)
        assert "computed  nothing: no key is visible" in text
        assert ("none: the result is empty" in text) == (explanation.tasks == 0)


def test_slopes_bias_every_tile(target):
    x = np.zeros((1, 2, 600, 4), np.float32)
    plain, biased = (
        regard.explain(x, x, x, is_causal=True, **more) for more in ({}, {"alibi_slopes": [0.5, 1]})
    )
    assert biased.tiles_computed == biased.tiles_biased == plain.tiles_computed
    assert biased.scores_computed == plain.scores_computed


LONG = {
    "full": {},
    "causal": {"is_causal": True},
    "window": {"window": (2**20, 0)},
    "slopes": {"is_causal": True, "alibi_slopes": [0.5] * 64},
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_call_is_counted_at_once(name, target):
    """Counting tile by tile would take hours."""
    n, left = 2**22, 2**20
    x = np.broadcast_to(np.float32(1), (64, n, 64))
    found = regard.explain(x, x, x, **LONG[name])
    seen = n * n if name == "full" else n * (n + 1) // 2
    if name == "window":
        seen -= (n - left - 1) * (n - left) // 2
    edges = n * (found.strip_rows + 2 * found.tile_keys)
    assert 64 * seen <= found.scores_computed <= 64 * (seen + 2 * edges)


def test_tiles_of_a_window(target):
    """A strip of queries computes the tiles in which some query sees a key, and hides single scores
    in those that not all see whole."""
    x = np.zeros((1, 480, 4), np.float32)
    found = regard.explain(x, x, x, window=(100, 0), threads=1)
    behind = np.arange(480)[:, None] - np.arange(480)
    seen = ((behind >= 0) & (behind <= 100)).astype(int)
    strips = np.add.reduceat(seen, range(0, 480, found.strip_rows), axis=0)
    counts = np.add.reduceat(strips, range(0, 480, found.tile_keys), axis=1)
    assert found.tiles_computed == np.count_nonzero(counts)
    assert found.tiles_biased == np.sum(
        (counts > 0) & (counts < found.strip_rows * found.tile_keys)
    )
