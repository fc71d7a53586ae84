"""A cache in a file: it survives, it says what is wrong with it, and it loses nothing."""

import os
import shutil
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest

import cache_model
import regard
from cache_model import Model, assert_answers, normal, tokens, told
from messages import says

HEADER = 4096
PAGES = {"page_size": 16}
DESCRIPTION = struct.Struct("<8sII16s9q")


def make(path, **options):
    cache = regard.KVCache(2, 2, 8, 5, path=path, **options)
    cache.append(*tokens(0, 2, 7), lengths=[7, 4])
    return cache


@pytest.mark.parametrize("sizes", [{}, {"capacity": 60}, {"window": 5, "sink_tokens": 2}, PAGES])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_everything_is_there_again(sizes, dtype, path):
    storage = np.dtype(dtype)
    asking = np.float32 if dtype == "int8" else storage
    window = {name: sizes[name] for name in sizes if name in ("window", "sink_tokens")}
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


@pytest.mark.parametrize("sizes", [{}, {"window": 5}, PAGES])
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
    model = Model(2, 2, 8, 5, np.dtype(np.float32), window=sizes.get("window"))
    for step in range(50):
        model.append(*tokens(step, 2, 1))
    with regard.KVCache.open(path) as cache:
        assert_answers(cache, model, normal(0, 2, 4, 1, 8, dtype=np.float32))


@pytest.mark.parametrize("sizes", [{}, {"capacity": 30}, {"window": 4, "sink_tokens": 1}, PAGES])
def test_what_dies_between_data_and_lengths_loses_nothing(sizes, path, monkeypatch):
    cache = make(path, **sizes)
    for step in range(8):
        before = told(cache)
        with monkeypatch.context() as patch:
            patch.setattr("regard._cache.file_slots.FileSlots.commit", lambda *_: 1 / 0)
            patch.setattr("regard._cache.file_table.FileTable.commit", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                cache.append(*tokens(90 + step, 2, 3))
        assert told(cache) == before
        copied = path.with_name("copy")
        shutil.copy(path, copied)
        with regard.KVCache.open(copied) as same:
            assert told(same) == before
        cache.append(*tokens(step, 2, 2))
    cache.close()


def test_a_torn_record_gives_the_lengths_before_it(path):
    cache = make(path)
    cache.append(*tokens(1, 2, 1))
    cache.append(*tokens(2, 2, 1))
    cache.close()
    content = bytearray(path.read_bytes())
    records = [content.index(struct.pack("<2q", *pair), 512) for pair in ((8, 5), (9, 6))]
    for at, lengths in zip(reversed(records), ([8, 5], [9, 6]), strict=True):
        torn = bytearray(content)
        torn[at] ^= 1
        path.write_bytes(torn)
        with regard.KVCache.open(path, "r") as cache:
            assert cache.lengths.tolist() == lengths
    for at in records:
        content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: neither of its records"):
        regard.KVCache.open(path)


def test_there_must_be_no_file(path):
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="cache"):
        regard.KVCache(1, 1, 4, path=path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(FileNotFoundError, match="nothing"):
        regard.KVCache.open(path.with_name("nothing"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        regard.KVCache(1, 1, 4, path=path.with_name("nowhere") / "cache")


@pytest.mark.parametrize("mode", ["w", "rb", None, 3])
def test_modes(mode, path):
    make(path).close()
    with pytest.raises(ValueError, match=says("mode", "r+")):
        regard.KVCache.open(path, mode)


@pytest.mark.parametrize("sizes", [{}, PAGES])
def test_a_truncated_file_says_so(sizes, path):
    make(path, **sizes).close()
    content = path.read_bytes()
    for size in [*range(0, 700, 7), 1000, HEADER - 1, HEADER, HEADER + 1, len(content) - 1]:
        path.write_bytes(content[:size])
        for mode in ("r", "r+"):
            with pytest.raises(ValueError, match=r"no cache of regard|truncated"):
                regard.KVCache.open(path, mode)
        assert path.read_bytes() == content[:size]
    path.write_bytes(content)
    regard.KVCache.open(path).close()


def test_bytes_behind_the_end(path):
    make(path).close()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="bytes behind its end"):
        regard.KVCache.open(path)


KINDS = [{}, {"dtype": "int8"}, PAGES, PAGES | {"dtype": "int8"}]
NAMES = ["float32", "int8", "float32 pages", "int8 pages"]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_flipped_byte_of_the_description_is_noticed(kind, path):
    make(path, **kind).close()
    content = path.read_bytes()
    for at in range(DESCRIPTION.size):
        for flip in (1, 0x80, 0xFF):
            wrong = bytearray(content)
            wrong[at] ^= flip
            path.write_bytes(wrong)
            with pytest.raises(ValueError, match=r"no cache of regard|has version|damaged"):
                regard.KVCache.open(path)
            assert path.read_bytes() == wrong


NUMBERS = ["batch", "kv_heads", "head_dim", "value_dim"]
NUMBERS += ["slots", "window", "sink_tokens", "capacity", "page_size"]
WRONG = [("version", 1), ("version", 3), ("type", b"object"), ("type", b"\xff\xfe")]
WRONG += [(name, number) for name in NUMBERS for number in (-2, 0, 24, 2**62, -(2**63))]
# Not wrong: what the file has, a window that is wider than all, a limit beyond what there is.
FINE = {
    "float32": [("window", 24), ("window", 2**62), ("sink_tokens", 0)],
    "float32 pages": [("batch", 0), ("slots", 0), ("sink_tokens", 0)],
}
FINE["float32 pages"] += [("capacity", 24), ("capacity", 2**62)]
WRONG = [(kind, *each) for kind in FINE for each in WRONG if each not in FINE[kind]]
WRONG += [("int8", *each) for kind, *each in WRONG if kind == "float32"]
WRONG += [("float32", "type", b"int8"), ("int8", "type", b"float16")]


@pytest.mark.parametrize(("kind", "name", "number"), WRONG)
def test_a_foreign_description_with_the_right_checksum(kind, name, number, path):
    make(path, **KINDS[NAMES.index(kind)]).close()
    content = bytearray(path.read_bytes())
    fields = list(DESCRIPTION.unpack_from(content))
    at = {"version": 1, "type": 3} | {n: 4 + i for i, n in enumerate(NUMBERS)}
    fields[at[name]], fields[2] = number, 0
    fields[2] = zlib.crc32(DESCRIPTION.pack(*fields))
    DESCRIPTION.pack_into(content, 0, *fields)
    path.write_bytes(content)
    for mode in ("r", "r+"):
        with pytest.raises(ValueError, match=r"version|damaged|truncated|behind its end"):
            regard.KVCache.open(path, mode)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["kv_heads", "head_dim", "value_dim"])
def test_a_description_that_no_array_can_have(name, path):
    """Of no tokens, so that the file is as long as it should be."""
    regard.KVCache(2, 2, 8, 5, path=path).close()
    content = bytearray(path.read_bytes())
    fields = list(DESCRIPTION.unpack_from(content))
    fields[4 + NUMBERS.index(name)], fields[2] = 2**62, 0
    fields[2] = zlib.crc32(DESCRIPTION.pack(*fields))
    DESCRIPTION.pack_into(content, 0, *fields)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says(str(path), "damaged", str(2**62))):
        regard.KVCache.open(path)


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
    cache.append(*tokens(1, 2, 40))  # which makes a larger file
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


@pytest.mark.parametrize("window", [None, 30])
def test_a_disk_that_fills_leaves_what_was_there(window, path, output_of):
    """A limit on the size of files stands for it: posix_fallocate fails as on a full disk."""
    make(path, window=window).close()
    with regard.KVCache.open(path, "r") as cache:
        before = told(cache)
    script = f"""
    import resource, sys
    sys.path.insert(0, {str(os.path.dirname(cache_model.__file__))!r})
    import regard
    from cache_model import tokens, told
    cache = regard.KVCache.open({str(path)!r})
    before = told(cache)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
    for make in (
        lambda: cache.append(*tokens(1, 2, 2000)),
        lambda: regard.KVCache(2, 2, 8, path={str(path)!r} + "-other", capacity=5000),
    ):
        try:
            make()
        except OSError as error:
            print(error.errno, error.filename)
    assert told(cache) == before
    cache.append(*tokens(2, 2, 1))
    print(len(cache))
    cache.truncate([7, 4])
    """
    lines = output_of(script).splitlines()
    assert lines == [f"27 {path}.growing", f"27 {path}-other", "8"]
    assert [each.name for each in path.parent.iterdir()] == ["cache"]
    with regard.KVCache.open(path, "r") as cache:
        assert told(cache) == before


def test_what_is_left_of_one_that_died_growing_is_in_nobodys_way(path):
    make(path).close()
    path.with_name("cache.growing").write_bytes(b"x" * 100_000)
    with regard.KVCache.open(path) as cache:
        cache.append(*tokens(1, 2, 50))
    assert [each.name for each in path.parent.iterdir()] == ["cache"]
    regard.KVCache.open(path, "r").close()


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


def test_nothing_stays_open(path):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    cache = make(path)
    for step in range(20):
        cache.append(*tokens(step, 2, 9))
        cache.fork().append(*tokens(step, 2, 9))
    cache.flush()
    cache.close()
    path.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"no cache"):
        regard.KVCache.open(path)
    assert opened() == before
