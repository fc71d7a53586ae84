"""Forks of a cache in a file share its pages, and write where nothing is lost."""

import gc
import os
import shutil
import threading

import numpy as np
import pytest

import cache_model
import regard
from cache_model import normal, tokens
from file_caches import append, assert_right, make
from inside_cache import arrays_of, assert_owners_are_right, pool_of, taken


def test_forks_share_the_files_pages_and_leave_nothing_there(path):
    prompt = make(path, batch=1)
    append(0, 100, prompt)  # six pages and four tokens
    forks = [(prompt[0].fork(), prompt[1].fork()) for _ in range(3)]
    assert taken(prompt[0]) == 7
    append(1, 30, *forks)
    assert taken(prompt[0]) == 7 + 3 * 3
    append(2, 5, prompt)
    shutil.copy(path, path.with_name("copy"))
    with regard.KVCache.open(path.with_name("copy")) as opened:
        assert_right((opened, prompt[1]))
        assert taken(opened) == 7
    forks[0][0].close()
    assert taken(prompt[0]) == 7 + 2 * 3
    prompt[0].close()
    assert_right(*forks[1:])
    assert pool_of(forks[1][0]) is pool_of(forks[2][0])
    assert taken(forks[1][0]) == 6 + 2 * 3
    append(3, 40, *forks[1:])
    assert_right(*forks[1:])
    with regard.KVCache.open(path) as opened:
        assert_right((opened, prompt[1]))


@pytest.mark.parametrize("options", [{}, {"dtype": "int8"}])
def test_forks_of_a_file_for_reading_copy_only_what_changes(options, path):
    made, model = make(path, batch=1, **options)
    append(0, 1000, (made, model))
    made.close()
    content = path.read_bytes()
    with regard.KVCache.open(path, "r") as prompt:
        forks = [(prompt.fork(), model.fork()) for _ in range(3)]
        for each in forks[2]:
            each.truncate([50])
            each.reorder([0, 0])
        append(1, 3, *forks)
        mapped = arrays_of(prompt)[0]
        assert all(arrays_of(fork)[0] is mapped for fork, _ in forks)  # where the file is mapped
        assert taken(prompt) == 63 + 4
        append(2, 300, *forks)
        assert_right((prompt, model), *forks)
        late = prompt.fork(), model.fork()
        assert_owners_are_right([prompt, late[0], *(fork for fork, _ in forks)])
    assert_right(late, *forks)
    append(3, 30, late, *forks)
    assert_right(late, *forks)
    assert path.read_bytes() == content


def test_forks_of_a_file_for_reading_without_address_space(path, monkeypatch):
    monkeypatch.setattr("regard._cache.storage.file_room.free_address_space", lambda: 0)
    monkeypatch.setattr("regard._cache.storage.memory_room.free_address_space", lambda: 0)
    made, model = make(path)
    append(0, 100, (made, model))
    made.close()
    with regard.KVCache.open(path, "r") as prompt:
        fork = prompt.fork(), model.fork()
        for step in range(5):
            append(step, 100, fork)
            assert_right((prompt, model), fork)
    assert_right(fork)


def test_forks_of_a_cache_that_nobody_closed(path):
    """The forks keep the file, and must not overwrite its contents."""
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
                if number:  # one cache only attends
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
    sys.path.insert(0, {os.path.dirname(cache_model.__file__)!r})
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
