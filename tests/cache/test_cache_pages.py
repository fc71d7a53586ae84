"""Pages are shared if possible, are used again, and do not move; memory may be limited."""

import gc

import numpy as np
import pytest

import regard
from cache_tokens import normal, tokens
from inside_cache import arrays_of, page_bytes, table_of, taken
from reference import assert_same_bits


@pytest.mark.parametrize("stored", ["float32", "float64", "float16", "int8"])
def test_long_ragged_entries(stored, target):
    """There are enough keys for several tasks of one head, and the pages are not in order."""
    rooms = ({"capacity": 5000}, {"page_size": 16})
    caches = [regard.KVCache(3, 2, 8, 5, dtype=stored, **room) for room in rooms]
    for step, lengths in enumerate([[700, 3, 0], [20, 900, 16], [0, 33, 1], [500, 0, 1300]]):
        for cache in caches:
            cache.append(*tokens(step, 3, max(lengths)), lengths=lengths)
            cache.reorder([1, 2, 0])
            cache.truncate(np.maximum(cache.lengths - 5, 0))
    for q_len in (1, 3, 40):
        query = normal(q_len, 3, 4, q_len, 8).astype("float32" if stored == "int8" else stored)
        want = caches[0].attend(query, return_lse=True)
        for threads in (1, 2):
            assert_same_bits(caches[1].attend(query, return_lse=True, threads=threads), want)


def test_growth_moves_nothing():
    cache = regard.KVCache(1, 1, 4, page_size=16)
    one = np.ones((1, 1, 4))
    cache.append(one, one)
    arrays = arrays_of(cache)
    for length in range(2, 2000):
        cache.append(one, one)
        pages = -(-length // 16)
        assert cache.nbytes == pages * (page_bytes(cache) + 4)  # and the size of the table
    assert arrays_of(cache)[0].ctypes.data == arrays[0].ctypes.data


def test_a_limit_on_address_space(output_of):
    script = """
    import resource
    import numpy as np
    import regard
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    caches = [regard.KVCache(1, 2, 64, page_size=16) for _ in range(100)]
    for cache in caches:
        cache.append(*np.ones((2, 2, 100, 64), np.float32))
    try:
        one = np.broadcast_to(np.ones(64, np.float32), (2, 10**8, 64))
        caches[0].append(one, one)
    except MemoryError as error:
        print(error)
    caches[0].append(*np.ones((2, 2, 100, 64), np.float32))
    print(len(caches[0]), caches[0].attend(np.ones((2, 1, 64), np.float32)).sum())
    """
    lines = output_of(script).splitlines()
    assert lines[0].startswith("no memory for")
    assert lines[1:] == ["200 128.0"]


def test_what_is_reserved_is_in_no_childs_way(output_of):
    script = """
    import os, warnings
    import numpy as np
    import regard
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    one, query = np.ones((2, 2, 100, 64), np.float32), np.ones((4, 1, 64), np.float32)
    caches = [regard.KVCache(1, 2, 64, page_size=16) for _ in range(3)]
    for cache in caches:
        cache.append(*one)
    wanted = [cache.attend(query, threads=2).tobytes() for cache in caches]
    child = os.fork()
    if child == 0:
        same = [cache.attend(query, threads=2).tobytes() for cache in caches] == wanted
        for cache in caches:
            cache.append(*one)
        grown = all(len(cache) == 200 and (cache.attend(query) == 1).all() for cache in caches)
        os._exit(0 if same and grown else 1)
    assert os.waitpid(child, 0)[1] == 0
    print([len(cache) for cache in caches] == [100] * 3)
    """
    assert output_of(script) == "True"


def test_a_prompt_is_shared_by_its_forks():
    """Full pages stay shared; the last page is shared until a cache writes to it."""
    prompt = regard.KVCache(1, 2, 8, 5, page_size=16)
    prompt.append(*tokens(0, 1, 100))  # six pages and four tokens
    forks = [prompt.fork() for _ in range(8)]
    assert taken(prompt) == 7
    for number, fork in enumerate(forks):
        fork.append(*tokens(number, 1, 1))
        assert taken(prompt) == 8 + number
    prompt.append(*tokens(9, 1, 1))  # no other cache has its last page anymore
    assert taken(prompt) == 15
    first = table_of(prompt)[0, :6]
    assert all(np.array_equal(table_of(fork)[0, :6], first) for fork in forks)
    del forks, fork
    gc.collect()
    assert taken(prompt) == 7


def test_beams_share_pages():
    cache = regard.KVCache(1, 2, 8, 5, page_size=16)
    cache.append(*tokens(0, 1, 64))
    cache.reorder([0] * 5)
    assert (cache.lengths.tolist(), taken(cache)) == ([64] * 5, 4)
    cache.append(*tokens(1, 5, 1))
    assert taken(cache) == 9
    cache.reorder([3, 3, 3, 3, 1])
    assert taken(cache) == 6
    cache.append(*tokens(2, 5, 1))  # the last of the four keeps the page
    assert taken(cache) == 9


def test_pages_are_given_back_and_used_again():
    cache = regard.KVCache(2, 2, 8, 5, page_size=16)
    cache.append(*tokens(0, 2, 100))
    most = cache.nbytes
    for step in range(20):
        cache.truncate([step, 3 * step])
        assert taken(cache) == -(-step // 16) + -(-3 * step // 16)
        cache.append(*tokens(step, 2, 40))
    assert cache.nbytes == most
    cache.truncate(0)
    assert taken(cache) == 0
    fork = cache.fork()
    fork.append(*tokens(0, 2, 17))
    cache.close()
    assert taken(fork) == 4
    fork.close()
    assert taken(fork) == 0
