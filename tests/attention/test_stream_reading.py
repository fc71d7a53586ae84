"""How attend_stream reads: what, when, in which thread, in how much memory; and how it ends."""

import contextlib
import gc
import json
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from regard._stream_arrays import read

stream = regard.attend_stream
SIZE = 10  # keys in a chunk


def normal(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


QUERY, KEY, VALUE = normal(2, 3, 8), normal(2, 200, 8, seed=1), normal(2, 200, 4, seed=2)
CHUNKS = [(KEY[:, i : i + SIZE].copy(), VALUE[:, i : i + SIZE].copy()) for i in range(0, 200, SIZE)]
WHOLE = stream(QUERY, CHUNKS, return_lse=True)


@pytest.fixture(autouse=True)
def no_thread_remains():
    yield
    assert "regard.attend_stream" not in [thread.name for thread in threading.enumerate()]


class Stored:
    """An array in a file, which remembers which keys were read, and in which thread."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.reads, self.threads = [], set()

    def __getitem__(self, index):
        self.threads.add(threading.current_thread())
        self.reads.append(index[-2].start)
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all of it was read at once")


# What is seen by 3 queries of the 20 chunks of 10 keys, by their first keys.
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, range(0, 200, 10)),
        ({"is_causal": True}, [0]),
        ({"is_causal": True, "query_offset": 7}, [0]),
        ({"is_causal": True, "query_offset": 8}, [0, 10]),
        ({"is_causal": True, "query_offset": -3}, []),
        ({"is_causal": True, "query_offset": -2}, [0]),
        ({"is_causal": True, "query_offset": np.array([5, 35])}, [0, 10, 20, 30]),
        ({"window": (5, 0), "query_offset": 100}, [90, 100]),
        ({"window": (0, 0), "query_offset": 100}, [100]),
        ({"window": (0, 8), "query_offset": 100}, [100, 110]),
        ({"window": (None, 0), "query_offset": 17}, [0, 10]),
        ({"window": (0, None), "query_offset": 180}, [180, 190]),
        ({"window": (0, None), "query_offset": 200}, []),
        ({"window": (3, 3), "query_offset": 2**62}, []),
        ({"key_lengths": 20}, [0, 10]),
        ({"key_lengths": 21}, [0, 10, 20]),
        ({"key_lengths": 0}, []),
        ({"key_lengths": np.array([3, 20])}, [0, 10]),
        ({"left_padding": 180}, [180, 190]),
        ({"left_padding": 179}, [170, 180, 190]),
        ({"left_padding": 200}, []),
        ({"left_padding": np.array([185, 199])}, [180, 190]),
        ({"left_padding": 30, "key_lengths": 50, "is_causal": True, "query_offset": 36}, [30]),
        ({"is_causal": True, "query_offset": "end", "key_lengths": 50, "window": (9, 0)}, [30, 40]),
        # One entry sees keys 3 to 5, the other none: not 0 to 5.
        ({"left_padding": np.array([3, 60]), "key_lengths": np.array([6, 40])}, [0]),
    ],
)
def test_what_no_query_sees_is_not_read(options, seen):
    query = QUERY
    if any(isinstance(option, np.ndarray) for option in options.values()):
        query = np.stack([QUERY, QUERY])
    key, value = Stored(KEY), Stored(VALUE)
    done = []
    chunks = regard.KeyValueChunks(key, value, length=SIZE)
    output = stream(query, chunks, progress=lambda *told: done.append(told), **options)
    assert key.reads == value.reads == list(seen)
    assert threading.current_thread() not in key.threads | value.threads
    wanted = regard.scaled_dot_product_attention(query, KEY, VALUE, **options)
    np.testing.assert_allclose(output, wanted, rtol=1e-12, atol=1e-14)
    assert len(done) == len(seen)
    if done:
        ends = [(each, total) for each, total in done[-1:] if each == total]
        assert ends == done[-1:]
        assert [each for each, _ in done[:-1]] == [start + SIZE for start in list(seen)[:-1]]

    # As they come, the chunks after the last one are not asked for, and those before are not read.
    asked = []

    def lazily():
        for number in range(20):
            asked.append(number)
            yield key_slices[number]

    key, value = Stored(KEY), Stored(VALUE)
    key_slices = list(regard.KeyValueChunks(key, value, length=SIZE).unread())
    assert_same_bits(stream(query, lazily(), **options), output)
    assert key.reads == value.reads == list(seen)
    if "is_causal" in options or "key_lengths" in options:
        assert asked == list(range(max(seen, default=0) // SIZE + 1))


def test_the_next_chunk_is_read_while_one_is_computed():
    """Neither before it is time, nor after: each function that is told of progress waits until the
    next chunk has been asked for, and sees that the next but one has not."""
    asked = [threading.Event() for _ in CHUNKS]

    def chunks():
        for event, chunk in zip(asked, CHUNKS, strict=True):
            event.set()
            yield tuple(array.copy() for array in chunk)

    def progress(done, total):
        assert total is None
        number = done // SIZE
        if 1 < number < len(asked):  # the second one is asked for after the first was computed
            assert asked[number].wait(10)
        time.sleep(0.01)
        assert not any(event.is_set() for event in asked[number + 1 :])

    assert_same_bits(stream(QUERY, chunks(), return_lse=True, progress=progress), WHOLE)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_an_iterator_may_fill_the_same_memory_again(buffers):
    """When it fills a buffer, what was there before has been computed."""
    key, value = np.empty((buffers, 2, SIZE, 8)), np.empty((buffers, 2, SIZE, 4))
    done = [0]

    def chunks():
        for number, (k, v) in enumerate(CHUNKS):
            place = number % buffers
            assert done[-1] >= SIZE * (number - buffers + 1)
            key[place], value[place] = k, v
            yield key[place], value[place]

    def progress(now, total):
        done.append(now)

    actual = stream(QUERY, chunks(), return_lse=True, progress=progress)
    assert_same_bits(actual, WHOLE)


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
    """A generator of chunks that says when it was closed."""

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
    """It is raised if nothing else was, and else noted on what was."""
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


def test_a_stream_inside_a_stream():
    """The values are themselves attention to all keys, from the thread that reads."""

    def chunks():
        for key, _ in CHUNKS:
            yield key, stream(key, (chunk for chunk in CHUNKS))

    inner = stream(KEY, CHUNKS)
    wanted = stream(QUERY, regard.KeyValueChunks(KEY, inner, length=SIZE))
    assert_same_bits(stream(QUERY, chunks()), wanted)


def test_streams_side_by_side():
    results = [None] * 6

    def work(number):
        results[number] = stream(QUERY, (chunk for chunk in CHUNKS), return_lse=True)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert_same_bits(result, WHOLE)


def test_the_context_of_the_caller_holds_in_the_iterator():
    def chunks():
        for key, value in CHUNKS:
            assert np.geterr()["over"] == "ignore"
            yield key * np.float64(1e308) * 0, value

    with np.errstate(all="ignore"):
        stream(QUERY, chunks())


def chunk_bytes(pair):
    return sum(array.nbytes for array in pair)


@pytest.mark.parametrize("source", ["generator", "buffer", "memmap", "list of memmaps"])
def test_memory_is_two_chunks_and_the_states(source, tmp_path):
    """64 chunks of 1 MB, and states of 16 KB."""
    query, shape = normal(1, 32, 64, dtype="f4"), (1, 64 * 2048, 64)
    if source == "generator":

        def chunks():
            for seed in range(64):
                yield tuple(np.full((2, 1, 2048, 64), seed, np.float32))

        given = chunks()
    elif source == "buffer":

        def chunks():
            key, value = np.zeros((2, 1, 2048, 64), np.float32)
            for seed in range(64):
                key[:], value[:] = seed, seed
                yield key, value

        given = chunks()
    else:
        maps = [np.memmap(tmp_path / name, np.float32, "w+", shape=shape) for name in "kv"]
        given = regard.KeyValueChunks(*maps, length=2048)
        if source == "list of memmaps":
            given = [tuple(m[:, i : i + 2048] for m in maps) for i in range(0, shape[1], 2048)]
    size = 2 * 2048 * 64 * 4
    stream(query, [(np.zeros((1, 9, 64), "f4"),) * 2])  # what is imported or kept by a first call
    gc.collect()
    tracemalloc.start()
    try:
        stream(query, given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < peak < 2 * size + 300_000


def test_a_read_of_a_file_stops_between_pieces(tmp_path):
    """After Ctrl-C the thread ends although a chunk may take seconds to read."""
    file = np.memmap(tmp_path / "file", np.float32, "w+", shape=(2, 1 << 17, 64))
    answers = iter([False, False, True])
    array, is_lent = read(file, lambda: next(answers))
    assert array.shape == file.shape
    assert not is_lent
    assert next(answers, "none left") == "none left"
    file[:] = normal(2, 1, 64)
    assert_same_bits(read(file, lambda: False)[0], np.array(file))


def test_nothing_holds_a_chunk_when_the_call_has_ended():
    held = []

    def chunks():
        for key, value in CHUNKS:
            pair = key.copy(), value.copy()
            held.extend(map(weakref.ref, pair))
            yield pair
            del pair

    gc.disable()
    try:
        stream(QUERY, chunks())
        assert not any(ref() is not None for ref in held)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["memmap", "zarr", "zarr shards", "h5py", "h5py contiguous"])
def test_arrays_in_files(kind, tmp_path):
    """The bits of arrays in memory, masks included; nothing is read of hidden chunks."""
    mask = np.random.default_rng(4).random((2, 3, 200)) < 0.7
    bias = normal(200, seed=5)
    arrays = {"key": KEY, "value": VALUE, "mask": mask, "bias": bias}
    stored, file = {}, contextlib.nullcontext()
    if kind == "memmap":
        for name, array in arrays.items():
            stored[name] = np.memmap(tmp_path / name, array.dtype, "w+", shape=array.shape)
            stored[name][:] = array
    elif kind.startswith("zarr"):
        zarr = pytest.importorskip("zarr", reason="pip install zarr")
        for name, array in arrays.items():
            chunk = tuple(min(n, 20) for n in array.shape)
            axis = array.ndim - (1 if name in ("mask", "bias") else 2)
            shards = tuple(40 if i == axis else n for i, n in enumerate(chunk))
            stored[name] = zarr.create_array(
                tmp_path / name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=chunk,
                shards=shards if "shards" in kind else None,
            )
            stored[name][...] = array
    else:
        h5py = pytest.importorskip("h5py", reason="pip install h5py")
        file = h5py.File(tmp_path / "file", "w")
        chunk = None if "contiguous" in kind else True
        for name, array in arrays.items():
            stored[name] = file.create_dataset(name, data=array, chunks=chunk)
    with file:
        chunks = regard.KeyValueChunks(stored["key"], stored["value"], length=30)
        both = stored["mask"], stored["bias"]
        for part, of_arrays in (
            (both, (mask, bias)),
            (stored["mask"], mask),
            (None, None),
        ):
            for options in ({}, {"is_causal": True, "query_offset": 100}):
                actual = stream(QUERY, chunks, part, return_lse=True, **options)
                in_memory = regard.KeyValueChunks(KEY, VALUE, length=30)
                wanted = stream(QUERY, in_memory, of_arrays, return_lse=True, **options)
                assert_same_bits(actual, wanted)
        default = regard.KeyValueChunks(stored["key"], stored["value"]).length
        if kind == "zarr":
            assert default % 20 == 0
        elif kind == "zarr shards":
            assert default % 40 == 0
        assert default > 200
        assert_same_bits(
            stream(QUERY, [(stored["key"], stored["value"])]), stream(QUERY, [(KEY, VALUE)])
        )


def test_the_default_length():
    key = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (8, 10**7, 64), (0, 0, 0))
    length = regard.KeyValueChunks(key, key).length
    assert length == 15360  # 64 MiB are 16384 keys; a multiple of 1536
    big = np.broadcast_to(np.float32(0), (1, 5, 10**6))
    assert regard.KeyValueChunks(big, big).length == 1536


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


INTERRUPTED = """
import json, os, signal, threading, time
import numpy as np, regard
signal.signal(signal.SIGINT, signal.default_int_handler)
query = np.zeros((8, QUERIES, 64), "f4")
closed, sent = [], []

def chunks():
    try:
        while True:
            time.sleep(READ)
            yield tuple(np.zeros((2, 8, 8192, 64), "f4"))
    finally:
        closed.append(time.perf_counter())

def interrupt():
    time.sleep(0.7)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    regard.attend_stream(query, chunks())
    outcome = "finished"
except KeyboardInterrupt:
    outcome = "interrupted"
end = time.perf_counter()
before = bool(closed)
time.sleep(1.5 * READ)
threads = [thread.name for thread in threading.enumerate()]
key = np.ones((1, 5, 64), "f4")
again = regard.attend_stream(query[:1, :3], [(key, key)])
print(json.dumps({
    "outcome": outcome, "delay": end - sent[0], "threads": threads, "closed": len(closed),
    "at once": before, "works": bool((again == 1).all()),
}))
"""


@pytest.mark.parametrize(
    ("queries", "read"),
    [(1, 0.0), (1, 1.0), (4096, 0.0)],
    ids=["many chunks", "a long read", "a long product"],
)
def test_an_interrupt(queries, read, output_of):
    script = INTERRUPTED.replace("QUERIES", str(queries)).replace("READ", str(read))
    told = json.loads(output_of(script))
    assert told["outcome"] == "interrupted"
    assert told["delay"] < 0.3
    assert told["threads"] == ["MainThread"]
    assert told["closed"] == 1
    assert told["at once"] == (read < 0.5)
    assert told["works"]


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


def test_no_thread_to_start(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        stream(QUERY, iter(CHUNKS))


def test_the_module_needs_no_package_and_starts_no_thread(output_of):
    script = """
    import sys, threading, regard
    print([name for name in ("tqdm", "zarr", "h5py", "queue", "concurrent") if name in sys.modules],
          threading.active_count())
    """
    assert output_of(script) == "[] 1"
