"""How attend_stream ends: after exceptions, Ctrl-C and forks, and how it reports its progress."""

import contextlib
import gc
import os
import threading
import time

import numpy as np
import pytest

import streams
from regard._stream.call import _Thread
from streams import CHUNKS, QUERY, stream


class Ended(Exception):
    pass


@pytest.mark.parametrize("at", [0, 7, 20])
@pytest.mark.parametrize("error", [KeyError(3), SystemExit(4)])
def test_exceptions_of_the_iterator_are_raised_as_they_are(error, at):
    def chunks():
        yield from CHUNKS[:at]
        raise error

    out = np.full((2, 3, 4), 7.0)
    with pytest.raises(type(error)) as raised:
        stream(QUERY, chunks(), out=out)
    assert raised.value is error
    assert (out == 7).all()
    names = [entry.name for entry in raised.traceback]
    assert "chunks" in names
    assert "test_exceptions_of_the_iterator_are_raised_as_they_are" in names


class Reader:
    """A generator of chunks that records when it was closed."""

    def __init__(self, error=None):
        self.closed, self.error = [], error

    def chunks(self):
        try:
            yield from CHUNKS
        finally:
            self.closed.append(threading.current_thread())
            if self.error:
                raise self.error


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_lengths": 30},
        {"key_lengths": 0},
        {"key_lengths": 201},
        {"mask": np.zeros((9, 200))},
        {"progress": lambda done, total: 1 / (done < 50)},
        {"progress": lambda done, total: 1 / 0},
    ],
)
def test_a_generator_is_closed_where_it_ran(options):
    reader = Reader()
    with contextlib.suppress(ValueError, ZeroDivisionError):
        stream(QUERY, reader.chunks(), **options)
    assert len(reader.closed) == 1
    assert threading.current_thread() not in reader.closed


def test_what_closing_raises():
    """An error on closing is raised if nothing else was raised; otherwise it is a note on the other
    error."""
    for options in ({}, {"key_lengths": 30}):
        with pytest.raises(Ended):
            stream(QUERY, Reader(Ended()).chunks(), **options)
    with pytest.raises(ZeroDivisionError) as raised:
        stream(QUERY, Reader(Ended("late")).chunks(), progress=lambda done, total: 1 / 0)
    assert raised.value.__notes__ == ["Closing chunks raised Ended('late')"]


def test_an_interrupt_before_the_thread_is_ended(monkeypatch):
    """It may come anywhere: the thread ends with the objects of the call."""

    def end(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_Thread, "end", end)
    with pytest.raises(KeyboardInterrupt):
        stream(QUERY, iter(CHUNKS))
    gc.collect()
    limit = time.monotonic() + 10
    while streams.is_reading() and time.monotonic() < limit:
        time.sleep(0.01)
    assert not streams.is_reading()


def test_no_thread_to_start(monkeypatch):
    def refuses(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(MemoryError, match="thread that reads chunks"):
        stream(QUERY, CHUNKS)


# Separate processes


FORKED = """
import os, sys, warnings
import numpy as np, regard
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
x = np.random.default_rng(0).standard_normal((2, 50, 8))
chunks = [(x[:, i : i + 5], x[:, i : i + 5]) for i in range(0, 50, 5)]
wanted = regard.attend_stream(x, chunks)

def child():
    "A process that computes a stream of its own, in the middle of another."
    pid = os.fork()
    if pid == 0:
        same = np.array_equal(regard.attend_stream(x, iter(chunks)), wanted)
        os._exit(0 if same else 1)
    assert os.waitpid(pid, 0)[1] == 0

def forking():
    for chunk in chunks:
        child()
        yield chunk

assert np.array_equal(regard.attend_stream(x, forking()), wanted)
assert np.array_equal(regard.attend_stream(x, chunks, progress=lambda *_: child()), wanted)

parent, children = os.getpid(), []
def leave(done, total):
    if done == 25 and os.getpid() == parent:
        children.append(os.fork())

try:
    same = np.array_equal(regard.attend_stream(x, chunks, progress=leave), wanted)
    assert same and os.getpid() == parent
    assert os.waitpid(children[0], 0)[1] == 0
    print("parent ended well")
except RuntimeError as error:
    assert os.getpid() != parent and "forked process" in str(error), error
    os._exit(0)
"""


def test_forks(output_of):
    assert output_of(FORKED) == "parent ended well"


# One process for all endings. What must happen is waited for, however slow the machine is; what
# must not be waited for would be waited for forever, and is shown after some minutes.
INTERRUPTS = """
import faulthandler, os, signal, sys, threading, time
import numpy as np, regard
faulthandler.dump_traceback_later(300, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, SUPPORT)
from streams import is_reading
query, main = np.zeros((1, 3, 64), "f4"), threading.main_thread().ident

def chunk(length):
    return tuple(np.zeros((2, 1, length, 64), "f4"))

def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

def ending(chunks, query=query, **options):
    "Return the error of a call, and an event that tells when its generator was closed."
    closed = threading.Event()
    def closing():
        try:
            yield from chunks
        finally:
            closed.set()
    try:
        regard.attend_stream(query, closing(), **options)
    except BaseException as error:
        return error, closed

def assert_all_is_over(closed):
    "The generator was closed, the thread has ended, and the next call is right."
    assert closed.wait()
    while is_reading():
        time.sleep(0.001)
    key = np.ones((1, 5, 64), "f4")
    assert (regard.attend_stream(query, [(key, key)]) == 1).all()

def many_chunks():
    given = 0
    def chunks():
        nonlocal given
        while True:
            if given == 20:
                press_ctrl_c()
            given += 1
            yield chunk(100)
    error, closed = ending(chunks())
    assert type(error) is KeyboardInterrupt
    assert_all_is_over(closed)
    assert given <= 23, given  # one is computed, and one that was read or is asked for

def a_long_read():
    go_on = threading.Event()
    def chunks():
        yield chunk(100)
        press_ctrl_c()
        go_on.wait()
        yield chunk(100)
    error, closed = ending(chunks())
    assert type(error) is KeyboardInterrupt
    assert is_reading() and not closed.is_set()
    go_on.set()
    assert_all_is_over(closed)

def hidden_chunks():
    def chunks():
        yield chunk(100)
        press_ctrl_c()
        while True:
            yield chunk(0)
    error, closed = ending(chunks(), left_padding=200)
    assert type(error) is KeyboardInterrupt
    assert_all_is_over(closed)

def names(frame):
    return {frame.f_code.co_name} | names(frame.f_back) if frame else set()

def an_error_beside_a_long_read():
    go_on = threading.Event()
    def chunks():
        for _ in range(3):
            yield chunk(100)
        while "__exit__" not in names(sys._current_frames()[main]):
            time.sleep(0.001)
        press_ctrl_c()
        go_on.wait()
    error, closed = ending(chunks(), progress=lambda done, total: 1 / (done < 300))
    assert type(error) is KeyboardInterrupt
    assert type(error.__context__) is ZeroDivisionError
    del error
    go_on.set()
    assert_all_is_over(closed)

def a_read_without_end():
    def chunks():
        yield chunk(100)
        press_ctrl_c()
        threading.Event().wait()
    error, _ = ending(chunks())
    assert type(error) is KeyboardInterrupt

many_chunks()
a_long_read()
hidden_chunks()
an_error_beside_a_long_read()
a_read_without_end()  # and the process ends
print("over")
"""


def test_interrupts_and_errors_while_the_thread_reads(output_of):
    script = f"SUPPORT = {os.path.dirname(streams.__file__)!r}\n" + INTERRUPTS
    assert output_of(script) == "over"
