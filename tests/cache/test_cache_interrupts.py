"""A call that stops at any moment leaves the cache as before or after the call, and usable."""

import dis
import functools
import itertools
import shutil
import sys
from pathlib import PurePath

import numpy as np
import pytest

from cache_kinds import CHANGES, KINDS, make, opened
from cache_model import assert_answers, normal, tokens, told
from inside_cache import assert_owners_are_right

# One moment of this many, or all in an exhaustive run.
EVERY = pytest.param(1, id="all", marks=pytest.mark.exhaustive)
STEPS = [pytest.param(127, id="some"), EVERY]
# Python runs signal handlers only after these instructions.
AFTER = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}


class Stop(BaseException):
    pass


class Moments:
    """Run a function wherever a cache's Python code can be interrupted, or at each of its lines."""

    def __init__(self, act, *, each="opcode"):
        self.act, self.each, self.count = act, each, 0

    def _of_call(self, frame, event, argument):
        code = frame.f_code
        if "_cache" not in PurePath(code.co_filename).parts or code.co_name == "__del__":
            return None  # an exception in a finalizer is not raised in a call
        frame.f_trace_opcodes = self.each == "opcode"
        return self._of_frame

    def _of_frame(self, frame, event, argument):
        if event == "line" == self.each or (
            event == "opcode" and frame.f_lasti in interruptible(frame.f_code)
        ):
            self.count += 1
            self.act(self.count - 1)
        return self._of_frame

    def __enter__(self):
        self.errors = np.geterr()
        sys.settrace(self._of_call)
        return self

    def __exit__(self, *error):
        sys.settrace(None)
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


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_is_interrupted(kind, change, step, tmp_path):
    """The cache, a fork that was made before and its file remain in use afterwards."""
    numbers = itertools.count()
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
        assert_usable(kind, cache, model, fork, same, path)


def assert_usable(kind, cache, model, fork, same, path):
    assert_answers(cache, model, normal(1, len(model.keys), 4, 1, 8).astype("f4"))
    for each in (cache, model):
        each.append(*tokens(8, len(model.keys), 20))
    for each in (fork, same):
        each.append(*tokens(9, len(same.keys), 20))
    for each, own in ((cache, model), (fork, same)):
        assert_answers(each, own, normal(1, len(own.keys), 4, 1, 8).astype("f4"))
    assert_owners_are_right([cache, fork])
    cache.close()
    assert_answers(fork, same, normal(1, len(same.keys), 4, 1, 8).astype("f4"))
    if path.exists():
        with opened(kind, path) as again:
            assert_answers(again, model, normal(1, len(model.keys), 4, 1, 8).astype("f4"))
        path.unlink()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["window", "window file", "int8 file"])
def test_an_undo_after_an_interrupted_append_sees_nothing_of_it(kind, step, tmp_path):
    """Before the append is complete, a window evicts nothing that a legal truncate needs."""
    for change in (CHANGES["token"], CHANGES["prompt"]):
        last = moments_of(change, kind, tmp_path / "first")
        (tmp_path / "first").unlink(missing_ok=True)
        for moment in range(0, last, step):
            path = tmp_path / "cache"
            cache, model = make(kind, path)
            before = told(cache)
            with pytest.raises(Stop), stop_at(moment):
                change(cache)
            if told(cache) == before:
                for each in (cache, model):
                    CHANGES["undo"](each)
                assert_answers(cache, model, normal(1, 2, 4, 1, 8).astype("f4"))
            cache.close()
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_forking_and_closing_that_are_interrupted(kind, step, tmp_path):
    numbers = itertools.count()
    for change in (lambda cache: cache.fork(), lambda cache: cache.close()):
        last = moments_of(change, kind, tmp_path / "first")
        (tmp_path / "first").unlink(missing_ok=True)
        for moment in range(0, last, step):
            path = tmp_path / str(next(numbers))
            cache, model = make(kind, path)
            fork, same = cache.fork(), model.fork()
            with pytest.raises(Stop), stop_at(moment):
                change(cache)
            if repr(cache).endswith("(closed)"):
                cache.close()  # an unfinished change is completed
                for each in (fork, same):
                    each.append(*tokens(9, 2, 20))
                assert_answers(fork, same, normal(1, 2, 4, 1, 8).astype("f4"))
                if path.exists():
                    with opened(kind, path) as again:
                        assert_answers(again, model, normal(1, 2, 4, 1, 8).astype("f4"))
            else:
                assert_usable(kind, cache, model, fork, same, path)


@pytest.mark.parametrize("step", [pytest.param(7, id="some"), *STEPS[1:]])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "file" in kind])
def test_wherever_a_process_dies_its_file_has_what_was_before_or_after(
    kind, change, step, tmp_path
):
    """At a death, the file keeps its contents of that moment. At every line it is copied and
    opened."""
    path, copied, found = tmp_path / "cache", tmp_path / "copy", []
    cache, _ = make(kind, path)
    before = told(cache)

    def look(count):
        if count % step == 0:
            sys.settrace(None)
            shutil.copy(path, copied)
            with opened(kind, copied, "r") as again:
                found.append(told(again))
            moments.__enter__()

    moments = Moments(look, each="line")
    with moments:
        change(cache)
    after = told(cache)
    assert len(found) > 5
    shutil.copy(path, copied)
    with opened(kind, copied, "r") as again:
        assert told(again) == after
    turned = [state == after for state in found]
    assert all(state in (before, after) for state in found)
    assert turned == sorted(turned)  # never goes back


def test_an_error_that_leaves_no_memory_leaves_all_as_it_was(tmp_path, monkeypatch):
    for kind in ("pages", "pages file"):
        cache, model = make(kind, tmp_path / "cache")
        fork, same, before = cache.fork(), model.fork(), told(cache)

        def fails(*arguments, **options):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr("numpy.zeros", fails)
            with pytest.raises(MemoryError):
                cache.append(*tokens(2, 2, 90))
        assert told(cache) == before
        assert_usable(kind, cache, model, fork, same, tmp_path / "cache")


# The garbage collector closes an open file whose object is not yet assigned.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["pages", "window", "int8", "layers", "pages file", "int8 file"])
def test_a_text_on_its_way_to_a_file_and_back_is_never_lost(kind, step, tmp_path):
    """The text is in the cache, in the file, or in both; the other text is untouched."""

    def attempts(change, moments, name):
        for moment in range(0, moments, step):
            path, waiting = tmp_path / f"{name}{moment}", tmp_path / f"{name}{moment}.waiting"
            cache, model = make(kind, path)
            text, other = model.fork([0]), model.fork([1])
            if name == "back":
                cache.preempt(0, waiting)
            with pytest.raises(Stop), stop_at(moment):
                change(cache, waiting)
            assert_kept(cache, waiting, text, other)
            cache.close()

    def assert_kept(cache, waiting, text, other):
        lengths = cache.lengths.tolist()
        if lengths == other.lengths:  # the text has left the cache
            assert_answers(cache, other, normal(1, 1, 4, 1, 8).astype("f4"))
            with opened(kind, waiting, "r") as again:
                assert_answers(again, text, normal(1, 1, 4, 1, 8).astype("f4"))
        else:
            first = lengths.index(text.lengths[0])
            both = text.fork([0])
            both.adopt(other.fork())
            both.reorder([first, 1 - first])
            assert_answers(cache, both, normal(1, 2, 4, 1, 8).astype("f4"))
        assert_owners_are_right([cache])

    def counted(change, prepare, name):
        cache, _ = make(kind, tmp_path / name)
        waiting = tmp_path / f"{name}.waiting"
        prepare(cache, waiting)
        with Moments(lambda count: None) as moments:
            change(cache, waiting)
        cache.close()
        assert moments.count
        return moments.count

    def away(cache, waiting):
        cache.preempt(0, waiting)

    def back(cache, waiting):
        cache.resume(waiting)

    attempts(away, counted(away, lambda *_: None, "first"), "away")
    attempts(back, counted(back, away, "second"), "back")
