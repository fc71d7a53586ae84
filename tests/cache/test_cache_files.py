"""A cache in a file survives, grows in place, and touches no other file."""

import errno
import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import cache_model
import regard
from cache_model import Model, assert_answers, normal, tokens, told
from file_caches import make as make_both
from messages import says

PAGES = {"page_size": 16}


def make(path, **options):
    cache = regard.KVCache(2, 2, 8, 5, path=path, **options)
    cache.append(*tokens(0, 2, 7), lengths=[7, 4])
    return cache


@pytest.mark.parametrize("sizes", [{}, {"capacity": 60}, {"keep_last": 5, "keep_first": 2}, PAGES])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_everything_is_there_again(sizes, dtype, path):
    storage = np.dtype(dtype)
    asking = np.float32 if dtype == "int8" else storage
    window = {name: sizes[name] for name in sizes if name in ("keep_last", "keep_first")}
    model = Model(2, 2, 8, 5, storage, **window)
    regard.KVCache(2, 2, 8, 5, path=path, dtype=storage, **sizes).close()
    for step, new in enumerate((3, 1, 1, 20, 1, 9)):
        with regard.KVCache.open(path) as cache:
            cache.append(*tokens(step, 2, new), lengths=[new, new // 2])
            model.append(*tokens(step, 2, new), [new, new // 2])
            assert_answers(cache, model, normal(step, 2, 4, 1, 8).astype(asking))
            here = told(cache)
            if step == 3:
                cache.reorder([1, 1, 0])
                cache.truncate(len(cache))
                cache.reorder([2, 1])
        with regard.KVCache.open(path, mode="r") as cache:
            assert told(cache) == here
    assert [each.name for each in path.parent.iterdir()] == ["cache"]


@pytest.mark.parametrize("sizes", [{}, {"keep_last": 5}, PAGES])
def test_a_process_that_is_killed_leaves_all_that_was_appended(sizes, path):
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(os.path.dirname(cache_model.__file__))!r})
import regard
from cache_model import tokens
cache = regard.KVCache(2, 2, 8, 5, path={str(path)!r}, **{sizes})
for step in range(50):
    cache.append(*tokens(step, 2, 1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -9
    model = Model(2, 2, 8, 5, np.dtype(np.float32), keep_last=sizes.get("keep_last"))
    for step in range(50):
        model.append(*tokens(step, 2, 1))
    with regard.KVCache.open(path) as cache:
        assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=np.float32))


def test_there_must_be_no_file(path):
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError) as caught:
        regard.KVCache(1, 1, 4, path=path)
    assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, os.path.realpath(path))
    assert "KVCache.open(path) continues the cache in it" in str(caught.value)
    with pytest.raises(FileExistsError) as caught:
        regard.KVCache(1, 1, 4, path=path.parent)
    assert "KVCache.open" not in str(caught.value)
    assert path.read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError, match="nothing"):
        regard.KVCache.open(path.with_name("nothing"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        regard.KVCache(1, 1, 4, path=path.with_name("nowhere") / "cache")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("", "path must name a file, got an empty str"),
        (b"", "path must name a file, got an empty bytes"),
        ("a\0b", r"path must have no null characters, got 'a\x00b'"),
    ],
)
@pytest.mark.parametrize(
    "door", [lambda path: regard.KVCache(1, 1, 4, path=path), regard.KVCache.open]
)
def test_paths_that_cannot_be(door, place, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        door(place)


@pytest.mark.parametrize("mode", ["w", "rb", None, 3])
def test_modes(mode, path):
    make(path).close()
    with pytest.raises(ValueError, match=says("mode", "r+")):
        regard.KVCache.open(path, mode)


@pytest.mark.parametrize("what", ["folder", "pipe", "text", "device"])
def test_what_is_no_file_of_a_cache(what, path):
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "text":
        path.write_text("Call me Ishmael. " * 1000)
    else:
        path = "/dev/zero"
    for mode in ("r", "r+"):
        with pytest.raises((ValueError, IsADirectoryError)):
            regard.KVCache.open(path, mode)


def test_one_writes_or_many_read(path, output_of):
    script = f"""
    import regard
    try:
        cache = regard.KVCache.open({str(path)!r}, {{mode!r}})
    except BlockingIOError as error:
        print(error)
    else:
        print(len(cache))
    """
    cache = make(path)
    for mode in ("r", "r+"):
        assert "one writer or many readers" in output_of(script.format(mode=mode))
        with pytest.raises(BlockingIOError, match="one writer or many readers"):
            regard.KVCache.open(path, mode)
    cache.append(*tokens(1, 2, 40))
    assert "one writer or many readers" in output_of(script.format(mode="r+"))
    fork = cache.fork()
    cache.close()
    assert len(fork) == 47
    assert output_of(script.format(mode="r+")) == "47"
    with regard.KVCache.open(path, "r"), regard.KVCache.open(path, "r"):
        assert output_of(script.format(mode="r")) == "47"
        assert "one writer or many readers" in output_of(script.format(mode="r+"))
    cache = regard.KVCache.open(path)
    del cache
    regard.KVCache.open(path).close()


@pytest.mark.parametrize("end", ["cache.close()", "with cache: pass", "del cache", "sys.exit()"])
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_child_does_not_unlock_its_parents_file(mode, end, path, output_of):
    make(path).close()
    script = f"""
    import os, sys, warnings
    import regard
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    cache = regard.KVCache.open({str(path)!r}, {mode!r})
    def opened():
        try:
            regard.KVCache.open({str(path)!r}).close()
        except BlockingIOError:
            return False
        return True
    child = os.fork()
    if child == 0:
        {end}
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    before = opened()
    cache.close()
    print(before, opened())
    """
    assert output_of(script) == "False True"


def test_what_is_open_for_reading_stays_as_it_is(path):
    make(path).close()
    content = path.read_bytes()
    with regard.KVCache.open(path, mode="r") as cache:
        before = told(cache)
        for change in (
            lambda: cache.append(*tokens(1, 2, 1)),
            lambda: cache.truncate(2),
            lambda: cache.reorder([1, 0]),
        ):
            with pytest.raises(ValueError, match=says("mode", "r")):
                change()
        fork = cache.fork()
        fork.append(*tokens(1, 2, 1))
        assert len(fork) == len(cache) + 1
        assert told(cache) == before
    assert path.read_bytes() == content


NEIGHBORS = ["cache.growing", "cache.tmp", "cache~", "cache-2"]


def test_a_neighbors_file_is_never_touched(path):
    """This holds for any name, since a cache grows in its own file."""
    for name in NEIGHBORS:
        path.with_name(name).write_bytes(b"mine")
    other = regard.KVCache(1, 1, 4, path=path.with_name("cache.other"))
    cache = make(path)
    inode = path.stat().st_ino
    for step in range(30):
        cache.append(*tokens(step, 2, 50))
        cache.reorder([1, 0])
        other.append(*np.ones((2, 1, 1, 90, 4)))
    assert path.stat().st_ino == inode
    cache.close()
    assert (other.attend(np.ones((1, 1, 4))) == 1).all()
    for name in NEIGHBORS:
        assert path.with_name(name).read_bytes() == b"mine"
    assert len(list(path.parent.iterdir())) == len(NEIGHBORS) + 2


def test_a_live_cache_that_takes_the_path_is_not_touched(path):
    """The first cache's file is renamed, and remains in use under its new name."""
    cache, moved = make(path), path.with_name("moved")
    path.rename(moved)
    other = make(path)
    for step in range(10):
        cache.append(*tokens(step, 2, 200))
        cache.reorder([0, 1, 1])
        cache.reorder([0, 1])
    wanted, others = told(cache), told(other)
    cache.close()
    with pytest.raises(BlockingIOError):
        regard.KVCache.open(path)
    assert told(other) == others
    other.close()
    for place, content in ((moved, wanted), (path, others)):
        with regard.KVCache.open(place, "r") as opened:
            assert told(opened) == content


def test_a_cache_that_cannot_be_made_removes_no_other_file(path, monkeypatch):
    """The cache's own file is already gone, and another file is in its place."""
    real = regard._cache.file.Ledger.created

    def fails(*arguments):
        path.unlink()
        path.write_bytes(b"mine")
        raise MemoryError

    monkeypatch.setattr("regard._cache.file.Ledger.created", fails)
    with pytest.raises(MemoryError):
        regard.KVCache(1, 1, 4, path=path)
    assert path.read_bytes() == b"mine"
    monkeypatch.setattr("regard._cache.file.Ledger.created", real)


def test_links_and_permissions_stay(path):
    cache = make(path)
    os.chmod(path, 0o600)
    cache.close()
    link = path.with_name("link")
    link.symlink_to(path)
    with regard.KVCache.open(link) as cache:
        cache.append(*tokens(1, 2, 50))
    assert link.is_symlink()
    assert os.stat(path).st_mode & 0o777 == 0o600
    with regard.KVCache.open(path, "r") as cache:
        assert len(cache) == 57


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


def test_nothing_stays_open(path):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = opened()
    cache, _ = make_both(path)
    for step in range(20):
        cache.append(*tokens(step, 2, 90))
        cache.fork().append(*tokens(step, 2, 9))
    cache.flush()
    assert opened() <= before + 4  # the file, its mapping, and the table's mapping
    cache.close()
    del cache
    gc.collect()
    assert opened() == before


def test_what_is_dropped_is_closed_at_once(path):
    """The last reference closes it, not a garbage collection that may come later."""
    gc.collect()
    gc.disable()
    try:
        for mode in ("r+", "r"):
            cache = make_both(path)[0] if not path.exists() else regard.KVCache.open(path, mode)
            cache.append(*tokens(0, 2, 20)) if mode == "r+" else cache.attend(normal(0, 2, 2, 1, 8))
            fork = cache.fork()
            fork.append(*tokens(1, 2, 20))
            del cache, fork
            regard.KVCache.open(path).close()
    finally:
        gc.enable()
