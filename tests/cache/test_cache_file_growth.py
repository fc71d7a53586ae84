"""Test the size of a cache's file: it grows in place, and free space is reused."""

import os
import shutil

import numpy as np
import pytest

import cache_model
import regard
from cache_model import Model, assert_answers, normal, tokens
from file_caches import FIRST_PAGE, append, assert_right
from file_caches import make as make_both
from inside_cache import arrays_of, assert_owners_are_right, ledger_of, page_bytes, table_of, taken


def test_growth_moves_nothing(path):
    both = make_both(path)
    append(0, 20, both)
    inode, size = path.stat().st_ino, path.stat().st_size
    full = table_of(both[0])[:, 0].copy()
    pages = arrays_of(both[0])[0][full].copy()
    for step in range(60):
        append(step, 7, both)
    assert path.stat().st_ino == inode
    assert np.array_equal(arrays_of(both[0])[0][full], pages)
    room = path.stat().st_size - FIRST_PAGE
    assert room / page_bytes(both[0]) <= 1.25 * taken(both[0]) + 1
    assert path.stat().st_size - FIRST_PAGE > 5 * (size - FIRST_PAGE)
    assert [each.name for each in path.parent.iterdir()] == ["cache"]
    assert_right(both)


def test_a_wide_table_moves_to_pages(path):
    """The ledger is too large for the areas after the header."""
    batch = 500
    cache = regard.KVCache(batch, 1, 1, page_size=16, path=path)
    model = Model(batch, 1, 1, 1, np.dtype("f4"))
    copied, places = path.with_name("copy"), set()
    for step in range(12):
        new = tokens(step, batch, 30, kv_heads=1, head_dim=1, value_dim=1)
        for each in (cache, model):
            each.append(*new, [30 - b % 3 for b in range(batch)])
        places.add(ledger_of(cache)._lines.place)
        if step % 4 == 3:
            indices = [(b * 7 + step) % batch for b in range(batch)]
            for each in (cache, model):
                each.reorder(indices)
            shutil.copy(path, copied)
            with regard.KVCache.open(copied, "r") as opened:
                assert_answers(opened, model, normal(0, batch, 2, 1, 1, dtype=np.float32))
            with regard.KVCache.open(copied) as opened:
                opened.append(*new)
                assert_owners_are_right([opened])
    assert min(places) < 2 < max(places)
    assert_owners_are_right([cache])


def test_beams_share_pages_and_still_do_when_opened_again(path):
    both = make_both(path, batch=1)
    append(0, 100, both)
    for each in both:
        each.reorder([0] * 5)
    assert taken(both[0]) == 7
    append(1, 1, both)
    assert taken(both[0]) == 11
    both[0].close()
    both = regard.KVCache.open(path), both[1]
    assert taken(both[0]) == 11
    assert_right(both)
    for each in both:
        each.reorder([3, 3, 1])
    append(2, 1, both)
    assert taken(both[0]) == 9
    assert_right(both)


def test_reordering_for_ever_takes_no_more_room(path):
    both = make_both(path, batch=4)
    append(0, 40, both)
    sizes = set()
    for step in range(200):
        for each in both:
            each.reorder([step % 4, 1, 2, 1])
        append(step, 1, both)
        for each in both:
            each.truncate([40] * 4)
        sizes.add(path.stat().st_size)
    assert_right(both)
    assert len(sizes) <= 4


@pytest.mark.parametrize("who", ["cache", "fork"])
def test_a_disk_that_fills_leaves_what_was_there(who, path, output_of):
    """A limit on the size of files simulates it: posix_fallocate fails as on a full disk."""
    cache, _ = make_both(path)
    cache.append(*tokens(0, 2, 7), lengths=[7, 4])
    cache.close()
    script = f"""
    import os, resource, sys
    sys.path.insert(0, {os.path.dirname(cache_model.__file__)!r})
    import regard
    from cache_model import tokens, told
    path = {str(path)!r}
    cache = regard.KVCache.open(path)
    fork = cache.fork()
    before, size = told(cache), os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (90000, 90000))
    for make in (
        lambda: {who}.append(*tokens(1, 2, 2000)),
        lambda: cache.reorder([0] * 9000),
        lambda: regard.KVCache(2, 2, 800, path=path + "-other", capacity=64),
    ):
        try:
            make()
        except OSError as error:
            print(error.errno, error.filename)
    assert told(cache) == before
    assert os.path.getsize(path) == size
    # Where the disk has no quarter more, what is needed.
    for step in range(4):
        {who}.append(*tokens(2, 2, 1))
    print({who}.lengths[0])
    """
    lines = output_of(script).splitlines()
    assert lines == [f"27 {path}", f"27 {path}", f"27 {path}-other", "11"]
    assert [each.name for each in path.parent.iterdir()] == ["cache"]
    with regard.KVCache.open(path, "r") as cache:
        assert cache.lengths.tolist() == ([11, 8] if who == "cache" else [7, 4])


def test_what_died_while_the_file_grew_is_in_nobodys_way(path):
    both = make_both(path)
    append(0, 20, both)
    both[0].close()
    with path.open("ab") as file:
        file.write(b"\xff" * 1000)
    both = regard.KVCache.open(path), both[1]
    append(1, 50, both)
    assert_right(both)


def test_a_copy_with_holes_takes_its_room(path):
    cache, _ = make_both(path, batch=1)
    cache.append(*tokens(0, 1, 16 * 40))
    cache.truncate(0)
    size = path.stat().st_size
    cache.close()
    with path.open("r+b") as file:
        file.truncate(FIRST_PAGE + 4096)
        file.truncate(size)
    assert path.stat().st_blocks * 512 < size
    regard.KVCache.open(path).close()
    assert path.stat().st_blocks * 512 >= size


def test_pages_that_were_free_are_used_again_when_opened(path):
    both = make_both(path, batch=1)
    append(0, 16 * 30, both)
    for each in both:
        each.truncate([16 * 3])
    size = path.stat().st_size
    both[0].close()
    both = regard.KVCache.open(path), both[1]
    assert taken(both[0]) == 3
    append(1, 16 * 27, both)
    assert path.stat().st_size == size
    assert table_of(both[0]).tolist() == [list(range(30))]
    assert_right(both)
