"""Test what `explain` reports about masks: the share of the scores that is computed, the memory of
the mask, and blocks that the kernels split."""

import numpy as np
import pytest

import regard
import sparse_cases
from regard import masks


def arrays_of(q_len, kv_len, heads=4, kv_heads=2, batch=2):
    shapes = (batch, heads, q_len, 16), (batch, kv_heads, kv_len, 16), (batch, kv_heads, kv_len, 8)
    return [np.zeros(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("q_len", [2, 300])
@pytest.mark.parametrize("name", sparse_cases.NAMES)
def test_a_sparse_mask_is_counted_as_the_same_dense_mask(name, q_len, target):
    arrays = arrays_of(q_len, 700)
    sparse = sparse_cases.sparse_masks(2, 4, q_len, 700)[name]
    dense = sparse_cases.dense(sparse, 700)
    found, wanted = (regard.explain(*arrays, mask, threads=2) for mask in (sparse, dense))
    seen = np.broadcast_to(dense, (2, 4, q_len, 700)).sum()
    assert seen <= found.scores_computed == wanted.scores_computed
    assert found.tiles_computed == wanted.tiles_computed
    assert found.scores == wanted.scores == 2 * 4 * q_len * 700
    share = found.scores_computed / found.scores
    counted = f"{found.scores_computed:,} of {found.scores:,} scores ({share:.3%})"
    assert f"\n          {counted}\n" in str(found)
    assert not any("converted" in note for note in found.notes)


def test_memory_of_masks():
    arrays = arrays_of(600, 600)
    sparse = masks.documents(np.arange(600) // 50)
    bias = np.zeros((600, 600), np.float32)
    plain = regard.explain(*arrays)
    for mask, size in (
        (sparse, 600 * 24 + 601 * 8),
        (sparse.to_dense(), 600 * 600),
        (bias, bias.nbytes),
        ((sparse, bias), 600 * 24 + 601 * 8 + bias.nbytes),
        (masks.Ranges(np.zeros((4, 1), int), np.full(600, 9)), 4 * 600 * 24 + 4 * 601 * 8),
    ):
        found = regard.explain(*arrays, mask)
        assert found.mask_bytes == size
        assert found.bytes == plain.bytes + size
    assert plain.mask_bytes == 0
    assert " of them for the mask, " in str(found)
    assert " of them for the mask" not in str(plain)


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_shares_of_packed_sequences(form, target):
    """Only pairs within the same sequence count."""
    starts = [0, 100, 100, 400], [0, 200, 250, 600]
    query, key, value = (np.zeros((n, 4, 16), np.float32) for n in (400, 600, 600))
    mask = masks.Ranges(np.arange(400) % 90, np.arange(400) % 90 + 9, kv_len=350)
    given = mask if form == "sparse" else mask.to_dense()[:, None]
    found = regard.explain(query, key, value, given, query_starts=starts[0], key_starts=starts[1])
    assert found.scores == 4 * (100 * 200 + 300 * 350)
    assert 4 * mask.nnz <= found.scores_computed < found.scores / 5


def random_blocks(block, heads=None):
    return masks.random_blocks(900, blocks_per_row=2, block=block, heads=heads, rng=0)


SPLIT = "blocks of the mask are split, since "
# A mask, heads and kv_heads, and the text of the note, or None if there is no note.
SPLITS = {
    "fitting": (lambda: random_blocks((128, 128)), (4, 4), None),
    "queries": (lambda: random_blocks((100, 128)), (4, 4), "100 queries are not a multiple of"),
    "groups": (lambda: random_blocks((32, 128)), (4, 1), None),
    "both": (
        lambda: random_blocks((60, 50)),
        (4, 4),
        "queries are not a multiple of 128 and their 50",
    ),
    "view": (lambda: random_blocks((128, 128))[37:], (4, 4), "do not begin at a multiple of 128 q"),
    "aligned view": (lambda: random_blocks((128, 128))[256:, 96:], (4, 4), None),
    "one query": (lambda: random_blocks((100, 128))[5:6], (4, 4), None),
}


@pytest.mark.parametrize("name", SPLITS)
def test_blocks_that_are_split(name):
    make, heads, wanted = SPLITS[name]
    mask = make()
    q_len = 900 if mask.shape[-2] == 1 else mask.shape[-2]
    notes = regard.explain(*arrays_of(q_len, mask.shape[-1], *heads), mask).notes
    notes = [note for note in notes if note.startswith(SPLIT)]
    assert len(notes) == (wanted is not None)
    if wanted:
        assert wanted in notes[0]


def test_sequences_that_begin_within_blocks():
    mask = random_blocks((128, 128))
    x = np.zeros((900, 2, 16), np.float32)
    for first, is_split in ((256, False), (300, True)):
        starts = [0, first, 900]
        found = regard.explain(x, x, x, mask, query_starts=starts, key_starts=[0, 0, 900])
        assert any("begin at a multiple of 128 queries" in note for note in found.notes) == is_split


def test_the_cache_counts_its_mask():
    cache = regard.KVCache(1, 2, 16)
    key = np.ones((1, 2, 300, 16), np.float32)
    cache.append(key, key)
    mask = masks.Ranges(290, 300)
    found = cache.explain(key[:, :, -3:], mask)
    assert found.mask_bytes == mask.nbytes
    assert found.scores == 2 * 3 * 300
    assert found.scores_computed < 300
