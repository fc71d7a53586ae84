"""A call that stops at any moment leaves the cache as before or after the call, and usable."""

import dis
import functools
import itertools
from pathlib import PurePath

import numpy as np
import pytest

from cache_kinds import CHANGES as ALL_CHANGES
from cache_kinds import KINDS, make, own_tokens
from cache_model import assert_alike
from cache_tokens import told
from inside_cache import assert_owners_are_right
from interrupts import Instructions

# One moment of this many, or all in an exhaustive run.
EVERY = pytest.param(1, id="all", marks=pytest.mark.exhaustive)
STEPS = [pytest.param(17, id="some"), EVERY]
# Python runs signal handlers only after these instructions.
AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


class Stop(BaseException):
    pass


class Moments(Instructions):
    """Run a function wherever a cache's Python code can be interrupted."""

    def __init__(self, act):
        super().__init__(self._is_of_cache, self._at)
        self.act, self.count = act, 0

    @staticmethod
    def _is_of_cache(code):
        # An exception in a finalizer is not raised in a call.
        return "_cache" in PurePath(code.co_filename).parts and code.co_name != "__del__"

    def _at(self, code, offset):
        if offset in interruptible(code):
            self.count += 1
            self.act(self.count - 1)

    def __enter__(self):
        self.errors = np.geterr()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        # A stop on the first line of a `with np.errstate(...)` leaves its settings in effect.
        np.seterr(**self.errors)


@functools.cache
def interruptible(code):
    """Return the offsets of the instructions before which a handler may run."""
    instructions = list(dis.get_instructions(code))
    return {
        after.offset for before, after in itertools.pairwise(instructions) if before.opname in AFTER
    }


def stop_at(moment):
    def act(count):
        if count == moment:
            raise Stop

    return Moments(act)


def moments_of(change, kind, path, *, shares=False):
    """Count the moments. A cache that shares its pages with a fork takes other steps."""
    cache, _ = make(kind, path)
    forks = [cache.fork()] if shares else []
    with Moments(lambda count: None) as moments:
        change(cache)
    for each in (*forks, cache):
        each.close()
    assert moments.count
    return moments.count


CHANGES = ALL_CHANGES | {"fork": lambda each: each.fork()}
# In the core, each change in three or four kinds, and each kind in two changes.
PAIRS = [
    pytest.param(kind, change, marks=[pytest.mark.slow] * ((i + 2 * j + 1) % 5 > 0))
    for i, kind in enumerate(KINDS)
    for j, change in enumerate(CHANGES)
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_a_change_that_is_interrupted(kind, name, step, tmp_path):
    """The cache and a fork that was made before remain in use afterwards. Before an append is
    complete, a window evicts nothing that a legal undo needs."""
    numbers, change = itertools.count(), CHANGES[name]
    last = moments_of(change, kind, tmp_path / "first", shares=True)
    for moment in range(0, last, step):
        path = tmp_path / str(next(numbers))
        cache, model = make(kind, path)
        fork, same = cache.fork(), model.fork()
        before = told(cache)
        with pytest.raises(Stop), stop_at(moment):
            change(cache)
        if told(cache) != before:
            change(model)
        elif name in ("token", "prompt"):
            for each in (cache, model):
                CHANGES["undo"](each)
        assert_usable(cache, model, fork, same)


def assert_usable(cache, model, fork, same):
    assert_alike(cache, model)
    for each in (cache, model):
        each.append(*own_tokens(model, 8, 20))
    for each in (fork, same):
        each.append(*own_tokens(same, 9, 20))
    for pair in ((cache, model), (fork, same)):
        assert_alike(*pair)
    assert_owners_are_right([cache, fork])
    cache.close()
    assert_alike(fork, same)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["pages", pytest.param("int8 file", marks=pytest.mark.slow)])
def test_closing_that_is_interrupted(kind, step, tmp_path):
    numbers = itertools.count()
    last = moments_of(lambda cache: cache.close(), kind, tmp_path / "first")
    for moment in range(0, last, step):
        cache, model = make(kind, tmp_path / str(next(numbers)))
        fork, same = cache.fork(), model.fork()
        with pytest.raises(Stop), stop_at(moment):
            cache.close()
        if not repr(cache).endswith("(closed)"):
            assert_usable(cache, model, fork, same)
        cache.close()
        assert_alike(fork, same)


# The garbage collector closes an open file whose object is not yet assigned.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")
@pytest.mark.parametrize("kind", ["window", "layers", "int8 file"])
def test_wherever_saving_stops_the_file_has_what_was_before_or_after(kind, tmp_path):
    """The cache does not change, and no other file stays."""
    path, numbers = tmp_path / "cache", itertools.count()
    cache, _ = make(kind, tmp_path / "first")
    (tmp_path / "first").unlink(missing_ok=True)
    cache.save(path)
    before = told(cache)
    CHANGES["packed"](cache)
    after, found = told(cache), []
    for moment in itertools.count(0, 5):
        try:
            with stop_at(moment):
                cache.save(path)
            break
        except Stop:
            next(numbers)
        assert [each.name for each in tmp_path.iterdir()] == ["cache"]
        assert told(cache) == after
        found.append(told(type(cache).load(path)))
    assert next(numbers) > 5
    assert all(state in (before, after) for state in found)
    assert told(type(cache).load(path)) == after
