"""A cache in pages of a file: nothing moves, pages are shared, and no death loses anything."""

import errno
import functools
import gc
import importlib
import itertools
import os
import shutil
import threading
import zlib

import numpy as np
import pytest

import regard
from cache_model import Model, assert_answers, normal, taken, tokens, told
from messages import says

HEADER, RECORDS = 4096, 512
HEAD = 16 + 3 * 8  # number, checksum, [batch, columns, first page]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache"


def make(path, batch=2, **options):
    """A cache and what it should be."""
    cache = regard.KVCache(batch, 2, 8, 5, path=path, page_size=16, **options)
    return cache, Model(batch, 2, 8, 5, cache._content.geometry.dtype)


def append(step, new, *pairs, lengths=None):
    for cache, model in pairs:
        batch = len(model.keys)
        cache.append(*tokens(step, batch, new), lengths)
        model.append(*tokens(step, batch, new), lengths)


def assert_right(*pairs):
    for cache, model in pairs:
        query = normal(0, len(model.keys), 4, 2, 8).astype(np.float32)
        assert_answers(cache, model, query)


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


class Death(BaseException):
    pass


CALLS = {
    "append": [lambda c: c.append(*tokens(5, 2, 40), [40, 3])],
    "truncate": [lambda c: c.truncate([9, 2])],
    "truncate and append": [
        lambda c: c.truncate([17, 2]),
        lambda c: c.append(*tokens(5, 2, 30), [30, 30]),
    ],
    "reorder": [lambda c: c.reorder([1, 1, 0])],
    "swap": [lambda c: c.reorder([1, 0])],
    "fork": [lambda c: c.fork().append(*tokens(5, 2, 40))],
    "wider": [lambda c: c.append(*tokens(5, 2, 16 * 400))],
}
STEPS = ["_rows.Rows.put", "_rows.Rows.put_at", "_file_pool.FilePool._put"]
STEPS += ["_file_table.FileTable.commit", "_pool.Pool.give_back", "_file_pool.FilePool._extend"]
STEPS += ["_pool.Pool.take", "_pool.Pool.share", "_page_state.PageState.with_lengths"]
STEPS += ["_page_state.PageState.with_table"]


def watched(monkeypatch, look):
    """Look before and after each thing that is done to a file."""
    for step in STEPS:
        module, name, method = step.split(".")
        owner = getattr(importlib.import_module(f"regard.cache.{module}"), name)

        def wrapped(*arguments, call):
            look()
            result = call(*arguments)
            look()
            return result

        call = getattr(owner, method)
        monkeypatch.setattr(owner, method, functools.partialmethod(wrapped, call=call))


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("shares", [False, True])
def test_wherever_a_process_dies_the_file_has_what_was_before_or_after(
    calls, shares, path, monkeypatch
):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 25), lengths=[25, 7])
    if shares:
        cache.reorder([0, 0])
    states, copied, moments = [told(cache)], path.with_name("copy"), []

    def look():
        shutil.copy(path, copied)
        with regard.KVCache.open(copied, "r") as opened:
            moments.append(told(opened))

    with monkeypatch.context() as patch:
        watched(patch, look)
        for call in calls:
            call(cache)
            states.append(told(cache))
    look()
    assert len(moments) >= 3
    # All in turn, none twice.
    assert [m for m, other in zip(moments, [None, *moments], strict=False) if m != other] == [
        s for s, other in zip(states, [None, *states], strict=False) if s != other
    ]


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_what_is_interrupted_leaves_the_cache_as_it_was_before_or_after(calls, path, monkeypatch):
    """Before any step; then the cache and its file are used on."""
    moment, died = 0, True
    while died:
        cache, model = make(path)
        append(0, 25, (cache, model), lengths=[25, 7])
        fork = cache.fork(), model.fork()
        steps, done, died = itertools.count(), [], False

        def interrupt(steps=steps, moment=moment):
            if next(steps) == moment:  # once: what mends is not interrupted
                raise Death

        with monkeypatch.context() as patch:
            watched(patch, interrupt)
            try:
                for call in calls:
                    before = told(cache)
                    call(cache)
                    done.append(call)
            except Death:
                died = True
                if told(cache) != before:
                    done.append(call)
        for call in done:
            call(model)
        append(1, 30, (cache, model), lengths=[30] * len(model.keys))
        append(2, 30, fork, lengths=[30, 30])
        assert_right((cache, model), fork)
        cache.close()
        assert_right(fork)
        with regard.KVCache.open(path) as opened:
            assert_right((opened, model))
        os.unlink(path)
        moment += 1
    assert moment >= 3


def test_a_torn_record_gives_what_was_before(path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    before = told(cache)
    cache.append(*tokens(1, 2, 1))
    ledger = (
        HEADER + cache._content.state.table._ledger.run.start * cache._content.state.pool.stride
    )
    newest = cache._content.state.table._number % 2
    cache.close()
    content = bytearray(path.read_bytes())
    content[ledger + newest * 32 + 20] ^= 1
    path.write_bytes(content)
    with regard.KVCache.open(path, "r") as opened:
        assert told(opened) == before
    content[ledger + (1 - newest) * 32 + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: neither of its records of lengths"):
        regard.KVCache.open(path)


def test_a_torn_header_has_its_like(path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    cache.reorder([1, 0, 1])
    wanted = told(cache)
    cache.close()
    content = bytearray(path.read_bytes())
    assert content[RECORDS : RECORDS + HEAD] == content[RECORDS + HEAD : RECORDS + 2 * HEAD]
    for at in range(RECORDS, RECORDS + 2 * HEAD):
        torn = bytearray(content)
        torn[at] ^= 1
        path.write_bytes(torn)
        with regard.KVCache.open(path, "r") as opened:
            assert told(opened) == wanted
        assert path.read_bytes() == torn
        with regard.KVCache.open(path) as opened:  # which mends it
            assert told(opened) == wanted
        mended = path.read_bytes()[RECORDS : RECORDS + 2 * HEAD]
        assert mended[:HEAD] == mended[HEAD:]
    content[RECORDS] ^= 1
    content[RECORDS + HEAD] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: neither of its two records"):
        regard.KVCache.open(path)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("number", [-1, 0, 1, 3, 1000, 2**31, 2**62, -(2**63)])
def test_a_foreign_header_with_the_right_checksum(place, number, path):
    """No crash, and never more memory than the file has room for; some are no wrong ones."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    cache.close()
    content = bytearray(path.read_bytes())
    numbers = np.frombuffer(content, "<i8", 3, RECORDS + 16).copy()
    same = numbers[place] == number
    numbers[place] = number
    for which in range(2):
        at = RECORDS + which * HEAD
        body, order = numbers.tobytes(), bytes(content[at : at + 8])
        content[at + 8 : at + 12] = zlib.crc32(body, zlib.crc32(order)).to_bytes(4, "little")
        content[at + 16 : at + HEAD] = body
    path.write_bytes(content)
    for mode in ("r", "r+"):
        if same:
            regard.KVCache.open(path, mode).close()
            continue
        with pytest.raises(ValueError, match=r"damaged|truncated"):
            regard.KVCache.open(path, mode)
        assert path.read_bytes() == content


@pytest.mark.parametrize("number", [-1, 0, 3, 4, 1000, 2**31 - 1, -(2**31)])
def test_a_table_with_impossible_pages(number, path):
    """The ledger lies in page 0, the tokens in 1 to 4."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    table = cache._content.state.table.pages
    assert table[:, :2].tolist() == [[1, 2], [3, 4]]
    table[1, 0] = number
    cache.close()
    if number in (3, 4):
        regard.KVCache.open(path).close()
        return
    with pytest.raises(ValueError, match=r"cache is (damaged|truncated): "):
        regard.KVCache.open(path)


@pytest.mark.parametrize("pages", range(6))
def test_a_file_without_its_last_pages(pages, path):
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 20))
    stride = cache._content.state.pool.stride
    wanted = told(cache)
    cache.close()
    content = path.read_bytes()
    path.write_bytes(content[: HEADER + pages * stride])
    if pages == 5:  # all that are used
        with regard.KVCache.open(path) as opened:
            assert told(opened) == wanted
        return
    with pytest.raises(ValueError, match=says(str(path), "truncated", "bytes or more")):
        regard.KVCache.open(path)


def test_forks_share_the_files_pages_and_leave_nothing_there(path):
    prompt = make(path, batch=1)
    append(0, 100, prompt)  # six pages and four tokens
    pool = prompt[0]._content.state.pool
    forks = [(prompt[0].fork(), prompt[1].fork()) for _ in range(3)]
    assert taken(pool) == 7 + 1
    append(1, 30, *forks)
    assert taken(pool) == 7 + 1 + 3 * 3
    append(2, 5, prompt)
    shutil.copy(path, path.with_name("copy"))
    with regard.KVCache.open(path.with_name("copy")) as opened:
        assert_right((opened, prompt[1]))
        assert taken(opened._content.state.pool) == 7 + 1
    forks[0][0].close()
    assert taken(pool) == 7 + 1 + 2 * 3
    prompt[0].close()
    assert_right(*forks[1:])
    there = forks[1][0]._content.state.pool
    assert there is forks[2][0]._content.state.pool is not pool
    assert taken(there) == 6 + 2 * 3
    append(3, 40, *forks[1:])
    assert_right(*forks[1:])
    with regard.KVCache.open(path) as opened:
        assert_right((opened, prompt[1]))


def test_forks_of_what_is_read_alone_share_one_copy(path):
    made, model = make(path, batch=1)
    append(0, 100, (made, model))
    made.close()
    content = path.read_bytes()
    with regard.KVCache.open(path, "r") as prompt:
        forks = [(prompt.fork(), model.fork()) for _ in range(3)]
        for each in forks[2]:
            each.truncate([50])
            each.reorder([0, 0])
        assert all(fork._content.state.pool is prompt._content.state.pool for fork, _ in forks)
        append(1, 3, *forks[:2])
        pool = forks[0][0]._content.state.pool
        assert pool is forks[2][0]._content.state.pool is not prompt._content.state.pool
        assert taken(pool) == 7 + 1
        append(2, 3, forks[2])
        assert_right((prompt, model), *forks)
        late = prompt.fork(), model.fork()
    assert_right(late, *forks)
    assert path.read_bytes() == content


def test_forks_of_a_cache_that_nobody_closed(path):
    """They keep the file, and must not write over what it holds."""
    cache, model = make(path)
    append(0, 40, (cache, model))
    fork = cache.fork(), model.fork()
    with pytest.raises(BlockingIOError):
        regard.KVCache.open(path)
    del cache
    gc.collect()
    for each in fork:
        each.truncate([3, 3])
    append(1, 200, fork)
    assert_right(fork)
    shutil.copy(path, path.with_name("copy"))
    with regard.KVCache.open(path.with_name("copy")) as opened:
        assert_right((opened, model))
    fork[0].close()
    del fork
    gc.collect()
    with regard.KVCache.open(path) as opened:
        assert_right((opened, model))


@pytest.mark.parametrize("who", ["cache", "fork"])
def test_a_disk_that_fills_leaves_what_was_there(who, path, output_of):
    """A limit on the size of files stands for it: posix_fallocate fails as on a full disk."""
    cache, _ = make(path)
    cache.append(*tokens(0, 2, 7), lengths=[7, 4])
    cache.close()
    script = f"""
    import resource, sys
    sys.path.insert(0, {os.path.dirname(__file__)!r})
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


def test_a_failing_fork_gives_back_what_it_has_taken_and_no_more(path, monkeypatch):
    for cache, model in (make(path), make(None)):
        append(0, 40, (cache, model))
        before = taken(cache._content.state.pool)
        for step in ("_page_table.MemoryTable.__init__", "_pool.Pool.share"):
            with monkeypatch.context() as patch:
                patch.setattr(f"regard.cache.{step}", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    cache.fork()
            gc.collect()
            assert taken(cache._content.state.pool) == before
        fork = cache.fork(), model.fork()
        append(1, 40, (cache, model))
        append(2, 40, fork)
        assert_right((cache, model), fork)
        cache.close()


@pytest.mark.parametrize("where", ["file", "memory"])
def test_closing_that_is_interrupted_gives_nothing_back_twice(where, path, monkeypatch):
    cache, model = make(path if where == "file" else None)
    append(0, 40, (cache, model))
    for moment in range(2):
        fork, moments = cache.fork(), itertools.count()

        def interrupt(moments=moments, moment=moment):
            if next(moments) == moment:
                raise Death

        with monkeypatch.context() as patch:
            watched(patch, interrupt)
            with pytest.raises(Death):
                fork.close()
        fork.close()
    del fork
    gc.collect()
    other = cache.fork(), model.fork()
    append(1, 40, (cache, model))
    append(2, 40, other)
    assert_right((cache, model), other)


def test_closing_without_memory_for_the_forks_changes_nothing(path, monkeypatch):
    cache, model = make(path)
    append(0, 40, (cache, model))
    forks = [(cache.fork(), model.fork()) for _ in range(3)]
    append(1, 3, *forks)
    for step in ("_pool.Pool.take", "_rows.Rows.put", "_pool.Pool.share"):
        with monkeypatch.context() as patch:
            patch.setattr(f"regard.cache.{step}", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                cache.close()
        assert_right((cache, model), *forks)
    cache.close()
    assert_right(*forks)
    append(2, 30, *forks)
    assert_right(*forks)


@pytest.mark.parametrize("way", ["read alone", "closed"])
def test_forks_in_several_threads_leave_the_file_together(way, path):
    prompt, model = make(path, batch=1)
    append(0, 300, (prompt, model))
    if way == "read alone":
        prompt.close()
        prompt = regard.KVCache.open(path, "r")
    for turn in range(20):
        forks = [(prompt.fork(), model.fork()) for _ in range(4)]
        start = threading.Barrier(len(forks) + 1)
        wrong = []

        def go(number, cache, start=start, wrong=wrong, turn=turn):
            start.wait()
            query = normal(number, 1, 4, 1, 8).astype(np.float32)
            for step in range(6):
                before = cache.attend(query).tobytes()
                if number:  # one attends alone
                    cache.append(*tokens(100 * number + step, 1, 9))
                    cache.truncate(len(cache) - 9)
                if cache.attend(query).tobytes() != before:
                    wrong.append((turn, number, step))
            if number:
                cache.append(*tokens(number, 1, 20))

        threads = [
            threading.Thread(target=go, args=(number, cache))
            for number, (cache, _) in enumerate(forks)
        ]
        for thread in threads:
            thread.start()
        start.wait()
        if way == "closed":
            prompt.close()
        for thread in threads:
            thread.join()
        assert not wrong
        for number, (_, same) in enumerate(forks[1:], 1):
            same.append(*tokens(number, 1, 20))
        assert_right(*forks)
        if way == "closed":
            prompt = regard.KVCache.open(path)
        assert_right((prompt, model))
    prompt.close()


@pytest.mark.parametrize("page_size", [None, 16])
def test_a_child_does_not_write_to_its_parents_file(page_size, path, output_of):
    script = f"""
    import os, sys, warnings
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    import regard
    from cache_model import tokens, told
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    cache = regard.KVCache(2, 2, 8, 5, path={str(path)!r}, page_size={page_size})
    cache.append(*tokens(0, 2, 40))
    before, fork = told(cache), cache.fork()
    child = os.fork()
    if child == 0:
        try:
            cache.append(*tokens(1, 2, 40))
        except ValueError as error:
            refused = "forked" in str(error)
        fork.append(*tokens(1, 2, 40))
        os._exit(0 if refused and len(fork) == 80 and told(cache) == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert told(cache) == before == told(fork)
    cache.append(*tokens(2, 2, 40))
    after = told(cache)
    cache.close()
    with regard.KVCache.open({str(path)!r}) as opened:
        print(told(opened) == after)
    """
    assert output_of(script) == "True"


def test_the_last_number_of_a_record_is_refused(path):
    """The next one would not be a number any more that fits."""
    make(path)[0].close()
    content = bytearray(path.read_bytes())
    body = bytes(content[RECORDS + 16 : RECORDS + HEAD])
    number = (2**62).to_bytes(8, "little")
    for at in (RECORDS, RECORDS + HEAD):
        content[at : at + 8] = number
        content[at + 8 : at + 12] = zlib.crc32(body, zlib.crc32(number)).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        regard.KVCache.open(path)


def test_a_damaged_file_takes_no_more_room(path):
    make(path)[0].close()
    with path.open("r+b") as file:
        file.seek(RECORDS)
        file.write(b"\0" * 2 * HEAD)
        file.truncate(50_000_000)
    with pytest.raises(ValueError, match="damaged"):
        regard.KVCache.open(path)
    assert path.stat().st_blocks * 512 < 1_000_000


def test_what_cannot_be_mapped_is_named(path, monkeypatch):
    make(path)[0].close()

    def none_left(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", none_left)
    with pytest.raises(OSError, match=f"memory, to map {path.stat().st_size} bytes") as raised:
        regard.KVCache.open(path)
    assert raised.value.filename == str(path)


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
