"""Test how attend_stream ends after Ctrl-C, after errors next to hidden chunks, and without a
thread."""

import os
import sys

import pytest

import streams

# These scripts wait for an event that must happen, however slow the machine is. They would wait
# forever for something that must not be waited for, so the process is ended after a minute.
STREAM = (
    f"SUPPORT = {os.path.dirname(streams.__file__)!r}"
    """
import os, signal, sys, threading, time
import numpy as np, regard
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, SUPPORT)
from streams import is_reading
query, closed = np.zeros((1, 3, 64), "f4"), threading.Event()

def chunk(length):
    return tuple(np.zeros((2, 1, length, 64), "f4"))

def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)

def stream(*arguments, **options):
    try:
        regard.attend_stream(*arguments, **options)
    except BaseException as error:
        return error

def assert_all_is_over():
    "The generator was closed, the thread has ended, and the next call is right."
    assert closed.wait()
    while is_reading():
        time.sleep(0.001)
    key = np.ones((1, 5, 64), "f4")
    assert (regard.attend_stream(query, [(key, key)]) == 1).all()
    print("over")
"""
)

MANY_CHUNKS = """
given = 0
def chunks():
    global given
    try:
        while True:
            if given == 20:
                press_ctrl_c()
            given += 1
            yield chunk(100)
    finally:
        closed.set()

assert type(stream(query, chunks())) is KeyboardInterrupt
assert_all_is_over()
assert given <= 23, given  # one is computed, and one that was read or is asked for
"""

A_LONG_READ = """
go_on = threading.Event()
def chunks():
    try:
        yield chunk(100)
        press_ctrl_c()
        go_on.wait()
        yield chunk(100)
    finally:
        closed.set()

assert type(stream(query, chunks())) is KeyboardInterrupt
assert is_reading() and not closed.is_set()
go_on.set()
assert_all_is_over()
"""

A_LONG_PRODUCT = """
endless = np.broadcast_to(np.zeros(64, "f4"), (1, 1 << 27, 64))
queries = np.zeros((1, 1 << 14, 64), "f4")
def chunks():
    try:
        yield chunk(100)
        yield endless, endless
        press_ctrl_c()  # the chunk before is computed
        yield chunk(100)
    finally:
        closed.set()

assert type(stream(queries, chunks())) is KeyboardInterrupt
assert_all_is_over()
"""

HIDDEN_CHUNKS = """
def chunks():
    try:
        yield chunk(100)
        press_ctrl_c()
        while True:
            yield chunk(0)
    finally:
        closed.set()

assert type(stream(query, chunks(), left_padding=200)) is KeyboardInterrupt
assert_all_is_over()
"""

AN_ERROR_BESIDE_HIDDEN_CHUNKS = """
def chunks():
    try:
        for _ in range(3):
            yield chunk(100)
        while True:
            yield chunk(0)
    finally:
        closed.set()

error = stream(query, chunks(), progress=lambda done, total: 1 / (done < 300))
assert type(error) is ZeroDivisionError
assert_all_is_over()
"""

AN_ERROR_BESIDE_A_LONG_READ = """
go_on, main = threading.Event(), threading.main_thread().ident

def names(frame):
    return {frame.f_code.co_name} | names(frame.f_back) if frame else set()

def chunks():
    try:
        for _ in range(3):
            yield chunk(100)
        while "__exit__" not in names(sys._current_frames()[main]):
            time.sleep(0.001)
        press_ctrl_c()
        go_on.wait()
    finally:
        closed.set()

error = stream(query, chunks(), progress=lambda done, total: 1 / (done < 300))
assert type(error) is KeyboardInterrupt
assert type(error.__context__) is ZeroDivisionError
del error
go_on.set()
assert_all_is_over()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(MANY_CHUNKS, id="many chunks"),
        pytest.param(A_LONG_READ, id="a long read"),
        pytest.param(A_LONG_PRODUCT, id="a long product"),
        pytest.param(HIDDEN_CHUNKS, id="hidden chunks"),
        pytest.param(AN_ERROR_BESIDE_HIDDEN_CHUNKS, id="an error beside hidden chunks"),
        pytest.param(AN_ERROR_BESIDE_A_LONG_READ, id="an error beside a long read"),
    ],
)
def test_an_interrupt(script, output_of):
    assert output_of(STREAM + script) == "over"


NO_THREAD = """
import _thread
start = _thread.start_new_thread

def refuses(function, arguments):
    raise RuntimeError("can't start new thread")

def has_no_memory(function, arguments):
    raise MemoryError

def starts_one_that_has_no_memory(function, arguments):
    del function
    return start(lambda: None, ())

key = np.ones((1, 5, 64), "f4")
for failing in (refuses, has_no_memory, starts_one_that_has_no_memory):
    _thread.start_new_thread = failing
    error = stream(query, iter([(key, key)]))
    assert type(error) is MemoryError, repr(error)
    assert str(error) == "no memory for the thread that reads chunks"

def ends(function, arguments):
    raise RuntimeError("can't create new thread at interpreter shutdown")

_thread.start_new_thread = ends
assert type(stream(query, [(key, key)])) is RuntimeError
_thread.start_new_thread = start
closed.set()
assert_all_is_over()
"""


def test_no_thread_to_start(output_of):
    """No thread can be started, or it dies before its first line, as it does if memory ends just
    then."""
    assert output_of(STREAM + NO_THREAD) == "over"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, sets RLIMIT_AS")
def test_memory_for_a_part_of_the_thread(output_of):
    """Memory ends before the thread's stack, after it, or in the thread's first steps."""
    script = """
    import os, resource
    import numpy as np, regard
    x = np.ones((1, 9, 64), "f4")
    def compute():
        assert (regard.attend_stream(x, [(x, x)] * 3) == 1).all()
    compute()
    endings = set()
    for room in [*range(0, 256 << 10, 16 << 10), *range(256 << 10, 10 << 20, 128 << 10)]:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the thread says there why it has ended
            pages = int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, -1))
            try:
                compute()
                has_room = True
            except MemoryError:
                has_room = False
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            compute()
            os._exit(not has_room)
        endings.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert endings == {0, 1}, endings
    print("done")
    """
    assert output_of(script) == "done"
