"""A cache in pages that something stops: a death, a signal, an error. Nothing is lost."""

import gc
import itertools
import os
import shutil

import pytest

import regard
from cache_model import taken, tokens, told
from paged_files import Death, append, assert_right, make, watched

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


def test_a_failing_fork_gives_back_what_it_has_taken_and_no_more(path, monkeypatch):
    for cache, model in (make(path), make(None)):
        append(0, 40, (cache, model))
        before = taken(cache._content.state.pool)
        for step in ("page_table.MemoryTable.__init__", "_pool.Pool.share"):
            with monkeypatch.context() as patch:
                patch.setattr(f"regard._cache.{step}", lambda *_: 1 / 0)
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
    for step in ("pool.Pool.take", "rows.Rows.put", "_pool.Pool.share"):
        with monkeypatch.context() as patch:
            patch.setattr(f"regard._cache.{step}", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                cache.close()
        assert_right((cache, model), *forks)
    cache.close()
    assert_right(*forks)
    append(2, 30, *forks)
    assert_right(*forks)
