"""Kill processes at random moments while they save a cache, and let threads change one cache."""

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import inside_cache
import regard
from cache_kinds import CHANGES, KINDS, make, own_tokens
from cache_tokens import told
from regard._cache.append import append_stored

LONGEST = 12e-3  # seconds until a kill; most changes and saves take less
ROUNDS = [2, pytest.param(130, marks=pytest.mark.exhaustive)]


def changes(seed):
    """Yield changes forever, except those that need the tokens appended by `make`."""
    chance = random.Random(seed)
    names = [name for name in CHANGES if name not in ("undo", "keep", "remove")]
    while True:
        yield CHANGES[chance.choice(names)], chance.randrange(10**6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_process_leaves_the_file_of_before_or_after(kind, rounds, tmp_path):
    """A neighbor's file is never touched."""
    path, neighbor = tmp_path / "cache", tmp_path / "cache.growing"
    neighbor.write_bytes(b"mine")
    chance = random.Random(kind)
    for _ in range(rounds):
        number = chance.random()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            cache, _ = make(kind, path)
            cache.save(path)
            os.write(writer, b"+")
            for change, seed in changes(number):
                change(cache, seed)
                cache.save(path)
                os.write(writer, b"+")
        os.close(writer)
        os.read(reader, 1)
        time.sleep(chance.random() * LONGEST)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(reader, "rb") as pipe:
            done = len(pipe.read())
        assert_is_one_of(path, kind, number, done)
        path.unlink()
        for unfinished in tmp_path.glob(".*"):
            unfinished.unlink()
    assert [each.name for each in tmp_path.iterdir()] == [neighbor.name]
    assert neighbor.read_bytes() == b"mine"


def assert_is_one_of(path, kind, number, done):
    """Check that the file has the result of this many changes, or one more, and remains usable."""
    after, _ = make(kind, path.with_name("expected"))
    path.with_name("expected").unlink(missing_ok=True)
    sequence = changes(number)
    for _ in range(done):
        change, seed = next(sequence)
        change(after, seed)
    before = after.fork()
    change, seed = next(sequence)
    change(after, seed)
    with type(after).load(path, mmap=done % 2 == 0) as again:
        found = told(again)
        assert found in (told(before), told(after)), f"{kind}: {done} changes, then {again}"
        for each in (again, expected := before if found == told(before) else after):
            each.append(*own_tokens(each, 3, 20))
        assert told(again) == told(expected)


THREADS = (
    f"SUPPORT = {str(Path(inside_cache.__file__).parent)!r}"
    """
import random, sys, threading
import numpy as np, regard
sys.path.insert(0, SUPPORT)
from inside_cache import assert_owners_are_right
sys.setswitchinterval(1e-6)
caches = regard.KVCaches(2, 4, 1, 4, page_size=16, keep_last=[None, 20])
forks, failures = [], []

def append(rng):
    rows = np.ones((2, caches.batch, 1, rng.randrange(30), 4), "f4")
    caches[rng.randrange(2)].append(*rows)

changes = [
    append,
    lambda rng: caches.reorder([*range(caches.batch), *[-1] * rng.randrange(3)]),
    lambda rng: caches.drop(rng.randrange(caches.batch)),
    lambda rng: caches.truncate(caches.lengths // 2),
    lambda rng: caches.rollback(),
    lambda rng: caches.remove(0, 1, 2),
    lambda rng: caches.keep(0, [caches._pages.length_before(0)]),
    lambda rng: forks.append(caches.fork()),
    lambda rng: caches.adopt(forks[-1]),
]

def change(seed):
    rng = random.Random(seed)
    for _ in range(1000):
        try:
            rng.choice(changes)(rng)
        except (ValueError, IndexError):
            pass  # the state has changed, or does not allow the call
        except BaseException as error:
            failures.append(error)
            raise

threads = [threading.Thread(target=change, args=(seed,)) for seed in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures
caches.rollback()
for fork in forks: fork.rollback()
assert_owners_are_right([caches, *forks])
print("over")
"""
)


def test_threads_that_change_one_cache(output_of):
    """A call fails if another thread has changed the entries meanwhile. Memory stays intact."""
    assert output_of(THREADS) == "over"


def test_a_change_during_a_long_append_is_not_lost():
    """The append raises, or comes first or last. Each try changes the cache at another moment."""
    key = np.ones((1, 8, 10_000, 64), np.float32)
    for delay in np.linspace(0, 4e-3, 9):
        cache = regard.KVCache(1, 8, 64, dtype="float16")
        cache.append(key[:, :, :16], key[:, :, :16])
        begins = threading.Event()

        def shorten(cache=cache, begins=begins, delay=delay):
            begins.wait()
            time.sleep(delay)
            cache.truncate(8)

        other = threading.Thread(target=shorten)
        other.start()
        begins.set()
        with contextlib.suppress(ValueError):
            cache.append(key, key)
        other.join()
        assert cache.lengths[0] in (8, 8 + key.shape[2])
        inside_cache.assert_owners_are_right([cache])


def test_an_append_between_whose_checks_another_thread_removed_entries():
    cache = regard.KVCache(1, 2, 8)
    rows = np.ones((2, 2, 3, 8), np.float32)  # of two entries, as before
    with pytest.raises(ValueError, match="another thread changed the entries"):
        append_stored(
            cache._layer, cache._sizes, [rows, rows, None, None], None, None, is_packed=False
        )
    assert cache.lengths[0] == 0


def test_a_removal_during_which_another_thread_appended():
    cache = regard.KVCache(1, 2, 8)
    cache.append(*np.ones((2, 1, 2, 3, 8)))
    without = cache._pages.fork(np.array([0]))
    without.truncate(2)
    cache.append(*np.ones((2, 1, 2, 1, 8)))
    with pytest.raises(ValueError, match="another thread has changed"):
        cache._pages.exchange(without)
    assert cache.lengths[0] == 4
