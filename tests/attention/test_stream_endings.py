"""Test how attend_stream ends after exceptions and forks, and how it reports its progress."""

import contextlib
import threading

import numpy as np
import pytest

from reference import assert_same_bits
from streams import CHUNKS, KEY, QUERY, SIZE, VALUE, no_thread_remains, stream  # noqa: F401


class Chunk(Exception):
    pass


class Ended(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("error", [Chunk("read"), StopIteration, KeyError(3), SystemExit(4)])
def test_exceptions_of_the_iterator_are_raised_as_they_are(error, at):
    class Chunks:
        def __iter__(self):
            self.given = 0
            return self

        def __next__(self):
            if self.given == at:
                raise error
            self.given += 1
            return CHUNKS[self.given - 1]

    if error is StopIteration and at:
        output = stream(QUERY, Chunks())
        assert_same_bits(output, stream(QUERY, CHUNKS[:at]))
        return
    with pytest.raises(type(error) if at or error is not StopIteration else ValueError) as raised:
        stream(QUERY, Chunks())
    if error is not StopIteration:
        assert raised.value is error
        names = [entry.name for entry in raised.traceback]
        assert "__next__" in names
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
        {"is_causal": True, "query_offset": 15},
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
    with pytest.raises(Ended):
        stream(QUERY, Reader(Ended()).chunks())
    with pytest.raises(Ended):
        stream(QUERY, Reader(Ended()).chunks(), key_lengths=30)
    with pytest.raises(ZeroDivisionError) as raised:
        stream(QUERY, Reader(Ended("late")).chunks(), progress=lambda done, total: 1 / 0)
    assert raised.value.__notes__ == ["Closing chunks raised Ended('late')"]


def test_an_error_in_the_middle_leaves_out_as_it_was():
    out = np.full((2, 3, 4), 7.0)
    chunks = [*CHUNKS[:5], (KEY, VALUE[:, 1:])]
    with pytest.raises(ValueError, match="chunk 5"):
        stream(QUERY, iter(chunks), out=out)
    assert (out == 7).all()


class TestProgress:
    def test_totals(self):
        told = []
        stream(QUERY, CHUNKS, progress=lambda *each: told.append(each))
        assert told == [(SIZE * (i + 1), 200) for i in range(20)]
        told.clear()
        stream(QUERY, iter(CHUNKS), progress=lambda *each: told.append(each))
        assert told == [(SIZE * (i + 1), None) for i in range(20)]
        told.clear()
        stream(QUERY, iter(CHUNKS), key_lengths=25, progress=lambda *each: told.append(each))
        assert told == [(10, 25), (20, 25), (25, 25)]

    def test_a_function_is_called_where_the_call_was(self):
        threads = set()
        stream(QUERY, CHUNKS, progress=lambda *each: threads.add(threading.current_thread()))
        assert threads == {threading.current_thread()}

    @pytest.mark.parametrize("progress", [None, False])
    def test_none(self, progress, capfd):
        stream(QUERY, CHUNKS, progress=progress)
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("known", [True, False])
    def test_a_bar(self, known, capfd):
        pytest.importorskip("tqdm", reason="pip install tqdm")
        stream(QUERY, CHUNKS if known else iter(CHUNKS), progress=True)
        told = capfd.readouterr().err
        assert ("200/200" if known else "200") in told
        assert told.endswith("\n")


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


def test_the_module_needs_no_package_and_starts_no_thread(output_of):
    script = """
    import sys, threading, regard
    print([name for name in ("tqdm", "zarr", "h5py", "queue", "concurrent") if name in sys.modules],
          threading.active_count())
    """
    assert output_of(script) == "[] 1"
