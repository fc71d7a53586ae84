"""Test how attend_stream ends after Ctrl-C, after errors next to hidden chunks, and without a
thread."""

import os

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

A_READ_WITHOUT_END = """
def chunks():
    yield chunk(100)
    press_ctrl_c()
    threading.Event().wait()

assert type(stream(query, chunks())) is KeyboardInterrupt
print("over")  # and the process ends
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
        pytest.param(A_READ_WITHOUT_END, id="a read without end"),
    ],
)
def test_an_interrupt(script, output_of):
    assert output_of(STREAM + script) == "over"


NO_THREAD = """
start = threading.Thread.start

def refuses(thread):
    raise RuntimeError("can't start new thread")

key = np.ones((1, 5, 64), "f4")
threading.Thread.start = refuses
error = stream(query, iter([(key, key)]))
assert type(error) is MemoryError, repr(error)
assert str(error) == "no memory for the thread that reads chunks"
threading.Thread.start = start
closed.set()
assert_all_is_over()
"""


def test_no_thread_to_start(output_of):
    assert output_of(STREAM + NO_THREAD) == "over"
