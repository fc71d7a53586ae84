"""Test how attend_stream reads: what, when, in which thread and with how much memory."""

import contextlib
import gc
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from streams import CHUNKS, KEY, QUERY, SIZE, VALUE, WHOLE, no_thread_remains, normal, stream  # noqa: F401


class Stored:
    """An array in a file that records which keys were read, and in which thread."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.reads, self.threads = [], set()

    def __getitem__(self, index):
        self.threads.add(threading.current_thread())
        self.reads.append(index[-2].start)
        return self.array[index]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("the whole array was read at once")


# The chunks of 10 keys, out of 20, that 3 queries see, by their first keys.
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
        # One entry sees keys 3 to 5, the other none; their union is not 0 to 5.
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

    # With an iterator, chunks after the last visible one are not requested, and earlier ones are
    # not read.
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
    """The read happens neither too early nor too late. Each progress call waits until the next
    chunk has been requested, and checks that the one after it has not been."""
    asked = [threading.Event() for _ in CHUNKS]

    def chunks():
        for event, chunk in zip(asked, CHUNKS, strict=True):
            event.set()
            yield tuple(array.copy() for array in chunk)

    def progress(done, total):
        assert total is None
        number = done // SIZE
        if number < len(asked):
            assert asked[number].wait(10)
        time.sleep(0.01)
        assert not any(event.is_set() for event in asked[number + 1 :])

    assert_same_bits(stream(QUERY, chunks(), return_lse=True, progress=progress), WHOLE)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_an_iterator_may_fill_the_same_memory_again(buffers):
    """Chunks are copied before the next one is requested."""
    key, value = np.empty((buffers, 2, SIZE, 8)), np.empty((buffers, 2, SIZE, 4))

    def chunks():
        for number, (k, v) in enumerate(CHUNKS):
            place = number % buffers
            key[place], value[place] = k, v
            yield key[place], value[place]

    actual = stream(QUERY, chunks(), return_lse=True)
    assert_same_bits(actual, WHOLE)


def test_a_mask_may_be_filled_again():
    """The mask of each chunk is copied, so that reading ahead does not change it."""
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((4, n, 16)) for n in (300, 2000, 2000))
    mask = random.random((300, 2000)) < 0.5

    def chunks():
        shown = np.empty((300, 200), bool)
        for start in range(0, 2000, 200):
            keys = slice(start, start + 200)
            shown[:] = mask[:, keys]
            yield key[:, keys].copy(), value[:, keys].copy(), shown

    want = regard.scaled_dot_product_attention(query, key, value, mask)
    assert np.allclose(regard.attend_stream(query, chunks()), want, rtol=0, atol=1e-13)


def test_a_stream_inside_a_stream():
    """The values are themselves attention to all keys, computed in the thread that reads."""

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


@pytest.mark.parametrize(
    "source",
    [
        "generator",
        pytest.param("buffer", marks=pytest.mark.slow),
        "memmap",
        pytest.param("list of memmaps", marks=pytest.mark.slow),
    ],
)
def test_memory_is_two_chunks_and_the_states(source, tmp_path):
    """There are 64 chunks of 1 MB, and states of 16 KB."""
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
    stream(query, [(np.zeros((1, 9, 64), "f4"),) * 2])  # imports, and caches of a first call
    gc.collect()
    tracemalloc.start()
    try:
        stream(query, given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    chunks = 3 if source in ("generator", "buffer") else 2  # the third one is the generator's
    assert size < peak < chunks * size + 300_000


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_holds_a_chunk_when_the_call_has_ended(fails):
    held = []

    def chunks():
        for key, value in CHUNKS:
            pair = key.copy(), value.copy()
            held.extend(map(weakref.ref, pair))
            if fails and len(held) == 8:
                raise ZeroDivisionError
            yield pair
            del pair

    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            stream(QUERY, chunks())
        assert not any(ref() is not None for ref in held)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["memmap", "zarr", "zarr shards", "h5py", "h5py contiguous"])
def test_arrays_in_files(kind, tmp_path):
    """The bits equal the result with arrays in memory, masks included, and hidden chunks are not
    read."""
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
    assert length == 15360  # 64 MiB hold 16384 keys; a multiple of 1536
    big = np.broadcast_to(np.float32(0), (1, 5, 10**6))
    assert regard.KeyValueChunks(big, big).length == 1536
