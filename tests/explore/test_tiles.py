"""Tiles hold the weights of the parts that they say, the most important parts first."""

import numpy as np
import pytest

import regard
from explorer_pages import TILE_ERROR, blocks, close_levels, problem, weights_of


def check(tile, weights):
    """Compare a tile with the weights of its head, and return whether it has single weights."""
    (first, end, first_key, end_key), planes = tile
    part = weights[first:end, first_key:end_key]
    if "weights" in planes:
        assert np.array_equal(planes["weights"] > 0, part > 0)
        assert np.allclose(planes["weights"], part, rtol=TILE_ERROR, atol=1e-11)
        return True
    for name, reduce in (("max", np.max), ("mean", np.mean)):
        close_levels(planes[name], blocks(part, *planes[name].shape, reduce))
    return False


@pytest.mark.parametrize(
    ("lengths", "detail"),
    [
        ((520, 520), None),
        pytest.param((1000, 1000), 32, marks=pytest.mark.slow),
        pytest.param((130, 900), 100, marks=pytest.mark.slow),
        ((900, 40), 64),
        ((1, 700), 256),
    ],
)
def test_tiles_are_parts_of_the_weights(page_of, lengths, detail):
    query, key = problem(*lengths)
    options = {"is_causal": True, "query_offset": "end", "softcap": 9.0}
    page = page_of(query, key, detail=detail, tile_bytes=400_000, **options)
    weights = weights_of(query, key, **options)
    for head in range(4):
        tiles = page.tiles(0, head)
        kinds = [check(tile, weights[head]) for tile in tiles]
        assert any(kinds)
        bounds = [(*tile[0], kind) for tile, kind in zip(tiles, kinds, strict=True)]
        assert len(set(bounds)) == len(bounds)
        for planes in (planes for _, planes in tiles):
            assert all(max(plane.shape) <= 64 for plane in planes.values())


@pytest.mark.slow
def test_a_page_has_room_for_tiles_up_to_max_bytes(page_of):
    query, key = problem(q_len=600, kv_len=600)
    with pytest.raises(ValueError, match="max_bytes must be at least about") as raised:
        regard.explore(query, key, max_bytes=1)
    least = 1e6 * float(str(raised.value).split("about ")[1].split(" MB")[0])
    tight = page_of(query, key, max_bytes=int(least + 1e5))
    usual = page_of(query, key)
    plain = page_of(query, key, tile_bytes=0)
    assert len(plain.bytes) < len(tight.bytes) <= len(plain.bytes) + 1.5e5 < len(usual.bytes)


def test_if_all_single_weights_fit_there_is_nothing_else(page_of):
    query, key = problem(q_len=400, kv_len=400)
    page = page_of(query, key, detail=32, is_causal=True, tile_bytes=20_000_000)
    weights = weights_of(query, key, is_causal=True)
    for head in range(4):
        found = np.zeros((400, 400))
        for (first, end, first_key, end_key), planes in page.tiles(0, head):
            found[first:end, first_key:end_key] += planes["weights"]
        assert np.allclose(found, weights[head], rtol=TILE_ERROR, atol=1e-11)
    assert len(page.tiles(0, 0)) == 8 * 9 // 2  # of 50 x 50 weights; none where all is hidden


def test_weight_beyond_the_top_keys_comes_first(page_of):
    """The top keys are shown at their places without tiles."""
    weights = np.zeros((1, 512, 512))
    weights[0, :, 3] = 0.9  # most of the weight, all of it in top keys
    weights[0, 64:128, 256:320] = 0.1 / 64
    weights[0, 300, 400:440] = 0.05 / 40
    page = page_of(weights=weights, detail=64, top_k=2, tile_bytes=12_000)
    bounds = [tile[0] for tile in page.tiles(0, 0)]
    assert bounds[:2] == [[64, 128, 256, 320], [256, 320, 384, 448]]
    assert sorted(bounds[2:]) == [[i, i + 64, 0, 64] for i in range(0, 512, 64)][: len(bounds) - 2]
    assert len(bounds) > 3


def test_texts_longer_than_the_grid_that_orders_tiles(page_of):
    """More than 512 tiles of single weights along an axis."""
    n = 40_000
    query, key = np.zeros((1, n, 1), np.float32), np.zeros((1, n, 1), np.float32)
    options = {"is_causal": True, "window": (3, 0), "statistics": (), "top_k": 1, "detail": 16}
    page = page_of(query, key, tile_bytes=60_000, **options)
    exact = [tile for tile in page.tiles(0, 0) if "weights" in tile[1]]
    assert len(exact) > 3
    for (first, end, first_key, end_key), planes in exact:
        assert end - first <= 64
        places = np.arange(first, end)[:, None] - np.arange(first_key, end_key)
        counts = np.minimum(4, np.arange(first, end) + 1)[:, None]
        wanted = np.where((places >= 0) & (places < 4), 1 / counts, 0)
        assert np.allclose(planes["weights"], wanted, rtol=TILE_ERROR)


def test_nan_and_fully_masked_heads(page_of):
    query, key = problem(q_len=200, kv_len=200)
    query[1, 10] = np.nan
    mask = np.ones((4, 1, 200), bool)
    mask[2] = False
    page = page_of(query, key, mask, detail=32, tile_bytes=400_000)
    assert page.tiles(0, 2) == []
    with_nan = 0
    for (first, end, *_), planes in page.tiles(0, 1):
        if first <= 10 < end:
            with_nan += 1
            assert np.isnan(planes["weights"][10]).all()
            assert np.isfinite(planes["weights"][11]).all()
    assert with_nan == 4


def test_a_page_that_is_too_large_is_refused_before_anything_is_read():
    """To count what a mask of 2^48 elements shows would take days."""
    x = np.broadcast_to(np.float32(1), (1, 2**24, 4))
    mask = np.broadcast_to(np.float32(0), (2**24, 2**24))
    with pytest.raises(ValueError, match="max_bytes must be at least about 967"):
        regard.explore(x, x, mask)
