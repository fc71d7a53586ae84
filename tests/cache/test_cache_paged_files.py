"""A cache in pages of a file: nothing moves, pages are shared, and free ones are used again."""

import gc
import os
import shutil

import numpy as np
import pytest

import cache_model
import regard
from cache_model import Model, assert_answers, normal, taken, tokens
from paged_files import HEADER, append, assert_right, make


def test_growth_moves_nothing(path):
    both = make(path)
    append(0, 20, both)
    inode, start = path.stat().st_ino, path.read_bytes()
    full = both[0]._content.state.pages[:, 0].tolist()
    pages = both[0]._content.state.pool.rows.key[full].copy()
    for step in range(60):
        append(step, 7, both)
    assert path.stat().st_ino == inode
    assert np.array_equal(both[0]._content.state.pool.rows.key[full], pages)
    room = path.stat().st_size - HEADER
    stride = both[0]._content.state.pool.stride
    assert room / stride <= 1.25 * both[0]._content.state.pool._used + 1
    assert len(path.read_bytes()) > 5 * len(start)
    assert [each.name for each in path.parent.iterdir()] == ["cache"]
    assert_right(both)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_the_bits_of_a_cache_in_memory(dtype, path, target):
    asking = np.float32 if dtype == "int8" else dtype
    here = regard.KVCache(3, 2, 8, 5, dtype=dtype, page_size=16)
    there = regard.KVCache(3, 2, 8, 5, dtype=dtype, page_size=16, path=path)
    for step, lengths in enumerate([[70, 3, 0], [20, 90, 16], [0, 33, 1], [50, 0, 130]]):
        for cache in (here, there):
            cache.append(*tokens(step, 3, max(lengths)), lengths=lengths)
            cache.reorder([1, 2, 0])
            cache.truncate(np.maximum(cache.lengths - 5, 0))
        query = normal(step, 3, 4, 3, 8).astype(asking)
        for threads in (1, 2):
            results = [c.attend(query, threads=threads).tobytes() for c in (here, there)]
            assert results[0] == results[1]


def test_a_wide_table_moves_to_a_new_ledger(path):
    """Pages of 32 numbers, so that a ledger has room for few."""
    cache = regard.KVCache(3, 1, 1, page_size=16, path=path)
    model = Model(3, 1, 1, 1, np.dtype("f4"))
    ledgers = set()
    for step in range(60):
        new = tokens(step, 3, 30, kv_heads=1, head_dim=1, value_dim=1)
        lengths = [30, step % 17, 5]
        cache.append(*new, lengths)
        model.append(*new, lengths)
        ledgers.add(cache._content.state.table._ledger.run)
        with_less = path.with_name("copy")
        shutil.copy(path, with_less)
        with regard.KVCache.open(with_less, "r") as copied:
            assert_answers(copied, model, normal(0, 3, 2, 1, 1, dtype=np.float32))
    assert 3 <= len(ledgers) <= 8
    assert len(max(ledgers, key=len)) > 1


def test_beams_share_pages_and_still_do_when_opened_again(path):
    both = make(path, batch=1)
    append(0, 100, both)
    for each in both:
        each.reorder([0] * 5)
    pool = both[0]._content.state.pool
    assert taken(pool) == 7 + 2  # a ledger, and the one before, which the next reorder takes
    append(1, 1, both)
    assert taken(pool) == 11 + 2
    both[0].close()
    both = regard.KVCache.open(path), both[1]
    pool = both[0]._content.state.pool
    assert taken(pool) == 11 + 1
    assert_right(both)
    for each in both:
        each.reorder([3, 3, 1])
    append(2, 1, both)
    assert taken(pool) == 9 + 2
    assert_right(both)


def test_reordering_for_ever_takes_no_more_room(path):
    both = make(path, batch=4)
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
    """A limit on the size of files stands for it: posix_fallocate fails as on a full disk."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 7), lengths=[7, 4])
    cache.close()
    script = f"""
    import resource, sys
    sys.path.insert(0, {os.path.dirname(cache_model.__file__)!r})
    import regard
    from cache_model import tokens, told
    path = {str(path)!r}
    cache = regard.KVCache.open(path)
    fork = cache.fork()
    before, size = told(cache), cache._content.state.pool.file.size
    resource.setrlimit(resource.RLIMIT_FSIZE, (15000, 15000))
    for make in (
        lambda: {who}.append(*tokens(1, 2, 2000)),
        lambda: cache.reorder([0] * 3000),
        lambda: regard.KVCache(2, 2, 800, path=path + "-other", page_size=64),
    ):
        try:
            make()
        except OSError as error:
            print(error.errno, error.filename)
    assert told(cache) == before
    assert cache._content.state.pool.file.size == size
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
    both = make(path)
    append(0, 20, both)
    both[0].close()
    with path.open("ab") as file:
        file.write(b"\xff" * 1000)
    both = regard.KVCache.open(path), both[1]
    append(1, 50, both)
    assert_right(both)


def test_a_copy_with_holes_takes_its_room(path):
    cache, _ = make(path, batch=1)
    cache.append(*tokens(0, 1, 16 * 40))
    cache.truncate(0)
    size = path.stat().st_size
    cache.close()
    with path.open("r+b") as file:
        file.truncate(HEADER + 4096)
        file.truncate(size)
    assert path.stat().st_blocks * 512 < size
    regard.KVCache.open(path).close()
    assert path.stat().st_blocks * 512 >= size


def test_pages_that_were_free_are_used_again_when_opened(path):
    both = make(path, batch=1)
    append(0, 16 * 30, both)
    for each in both:
        each.truncate([16 * 3])
    size = path.stat().st_size
    both[0].close()
    both = regard.KVCache.open(path), both[1]
    assert taken(both[0]._content.state.pool) == 4
    append(1, 16 * 27, both)
    assert path.stat().st_size == size
    assert both[0]._content.state.pages.tolist() == [list(range(1, 31))]
    assert_right(both)


def test_nothing_stays_open(path):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = opened()
    cache, _ = make(path)
    for step in range(20):
        cache.append(*tokens(step, 2, 90))
        cache.fork().append(*tokens(step, 2, 9))
    cache.flush()
    assert opened() <= before + 4  # the file, its mapping, and that of the table
    cache.close()
    del cache
    gc.collect()
    assert opened() == before


def test_what_is_dropped_is_closed_at_once(path):
    """By its last reference, not by a garbage collection that may come later."""
    gc.collect()
    gc.disable()
    try:
        for mode in ("r+", "r"):
            cache = make(path)[0] if not path.exists() else regard.KVCache.open(path, mode)
            cache.append(*tokens(0, 2, 20)) if mode == "r+" else cache.attend(normal(0, 2, 2, 1, 8))
            fork = cache.fork()
            fork.append(*tokens(1, 2, 20))
            del cache, fork
            regard.KVCache.open(path).close()
    finally:
        gc.enable()
