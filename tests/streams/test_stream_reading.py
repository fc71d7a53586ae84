"""How attend_stream reads: what, when, in which thread, from which objects, and with how much
memory."""

import contextlib
import gc
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from streams import CHUNKS, KEY, QUERY, SIZE, VALUE, WHOLE, Stored, normal, stream

MASK, BIAS = np.random.default_rng(7).random((2, 3, 200)) < 0.7, normal(200, seed=5)


class Readable(Stored):
    """One that NumPy reads too, as a whole."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self[..., :], dtype)


# The chunks of 10 keys, out of 20, that 3 queries see, by their first keys.
@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, range(0, 200, 10)),
        ({"is_causal": True, "query_offset": -2}, [0]),
        ({"is_causal": True, "query_offset": np.array([5, 35])}, [0, 10, 20, 30]),
        ({"window": (5, 0), "query_offset": 100}, [90, 100]),
        ({"window": (0, 8), "query_offset": 100}, [100, 110]),
        ({"window": (3, 3), "query_offset": 2**62}, []),
        ({"key_lengths": 0}, []),
        ({"left_padding": 180}, [180, 190]),
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
    assert [each for each, _ in done[:-1]] == [start + SIZE for start in list(seen)[:-1]]
    assert len(done) == len(seen)
    assert not done or done[-1][0] == done[-1][1]

    # An iterator is not asked for chunks after the last visible one, and earlier ones are not read.
    asked = []

    def lazily():
        for number, chunk in enumerate(unread):
            asked.append(number)
            yield chunk

    key, value = Stored(KEY), Stored(VALUE)
    unread = list(regard.KeyValueChunks(key, value, length=SIZE).unread())
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
        assert threading.current_thread() is threading.main_thread()
        number = done // SIZE
        if number < len(asked):
            assert asked[number].wait(10)
        time.sleep(0.01)
        assert not any(event.is_set() for event in asked[number + 1 :])

    assert_same_bits(stream(QUERY, chunks(), return_lse=True, progress=progress), WHOLE)


@pytest.mark.parametrize("buffers", [1, 2])
def test_an_iterator_may_fill_the_same_memory_again(buffers):
    """Chunks and their masks are copied before the next chunk is requested."""
    key, value = np.empty((buffers, 2, SIZE, 8)), np.empty((buffers, 2, SIZE, 4))
    shown = np.empty((buffers, 2, 3, SIZE), bool)

    def chunks():
        for number, (k, v) in enumerate(CHUNKS):
            place, start = number % buffers, number * SIZE
            key[place], value[place] = k, v
            shown[place] = MASK[..., start : start + SIZE]
            yield key[place], value[place], shown[place]

    assert_same_bits(stream(QUERY, chunks()), stream(QUERY, CHUNKS, MASK))


def test_a_stream_inside_streams_side_by_side():
    """The values are themselves attention to all keys, computed in the thread that reads."""

    def chunks():
        for key, _ in CHUNKS:
            assert np.geterr()["over"] == "ignore"  # the caller's context
            yield key, stream(key, (chunk for chunk in CHUNKS))

    def compute(_):
        with np.errstate(over="ignore"):
            return stream(QUERY, chunks())

    wanted = stream(QUERY, regard.KeyValueChunks(KEY, stream(KEY, CHUNKS), length=SIZE))
    with ThreadPoolExecutor(3) as pool:
        for result in pool.map(compute, range(3)):
            assert_same_bits(result, wanted)


@pytest.mark.parametrize("source", ["generator", "memmap"])
def test_memory_is_two_chunks_and_the_states(source, tmp_path):
    """There are 16 chunks of 1 MB, and states of 16 KB."""
    query, shape = normal(1, 32, 64, dtype="f4"), (1, 16 * 2048, 64)
    if source == "generator":
        given = (tuple(np.full((2, 1, 2048, 64), seed, np.float32)) for seed in range(16))
    else:
        maps = [np.memmap(tmp_path / name, np.float32, "w+", shape=shape) for name in "kv"]
        given = regard.KeyValueChunks(*maps, length=2048)
    size = 2 * 2048 * 64 * 4
    stream(query, [(np.zeros((1, 9, 64), "f4"),) * 2])  # imports, and caches of a first call
    gc.collect()
    tracemalloc.start()
    try:
        stream(query, given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    chunks = 3 if source == "generator" else 2  # the third one is the generator's
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


# Objects that are not arrays


KINDS = [(Stored, "dtype of a library"), (Stored, None), (Readable, "dtype of a library")]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_arrays_of_storage_libraries_are_never_read_whole(kind, dtype):
    key, value, mask = arrays = [kind(array, dtype) for array in (KEY, VALUE, MASK)]
    actual = stream(QUERY, regard.KeyValueChunks(key, value, length=SIZE), mask)
    assert_same_bits(actual, stream(QUERY, CHUNKS, MASK))
    for stored in arrays:
        assert stored.largest <= stored.array.size * SIZE // 200
    chunks = [[kind(array, dtype) for array in pair] for pair in CHUNKS]
    assert_same_bits(stream(QUERY, chunks, return_lse=True), WHOLE)


@pytest.mark.parametrize("broken", range(3))
@pytest.mark.parametrize(("kind", "dtype"), [*KINDS, (Readable, None)])
def test_errors_of_reading_propagate(broken, kind, dtype):
    error = KeyError("closed")
    key, value, mask = (
        kind(array, dtype, error=error if i == broken else None)
        for i, array in enumerate((KEY, VALUE, MASK))
    )
    with pytest.raises(type(error)) as caught:
        stream(QUERY, regard.KeyValueChunks(key, value, length=SIZE), mask)
    assert caught.value is error


@pytest.mark.parametrize(
    "make", [np.ma.masked_array, lambda part: part[..., :-1, :]], ids=["masked", "shorter"]
)
def test_what_a_lazy_array_hands_over_is_checked(make):
    key, value = (Readable(array, make=make) for array in (KEY, VALUE))
    with pytest.raises((TypeError, ValueError), match=r"masked array|shape that it had before"):
        stream(QUERY, regard.KeyValueChunks(key, value, length=30))


def test_lazy_arrays_may_decode_into_one_buffer():
    """Each part that is read overwrites the previous one: the value its key, the next chunk both,
    as in a codec that reuses its memory."""
    buffer = np.empty(2 * SIZE * 8)

    def make(array):
        made = buffer.view(np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)
        made[...] = array
        return made

    key, value, mask = (Readable(array, make=make) for array in (KEY, VALUE, MASK))
    chunks = regard.KeyValueChunks(key, value, length=SIZE)
    for pair, wanted in zip(chunks, CHUNKS, strict=True):
        assert_same_bits(pair, wanted)
    assert_same_bits(stream(QUERY, chunks, mask), stream(QUERY, CHUNKS, MASK))


def in_files(kind, arrays, folder, files):
    """Store arrays by name, and return what reads them."""
    if kind == "memmap":
        stored = {}
        for name, array in arrays.items():
            stored[name] = np.memmap(folder / name, array.dtype, "w+", shape=array.shape)
            stored[name][:] = array
        return stored
    if kind.startswith("h5py"):
        h5py = pytest.importorskip("h5py", reason="pip install h5py")
        file = files.enter_context(h5py.File(folder / "file", "w"))
        blocks = None if "contiguous" in kind else True
        return {n: file.create_dataset(n, data=x, chunks=blocks) for n, x in arrays.items()}
    zarr = pytest.importorskip("zarr", reason="pip install zarr")
    stored = {}
    for name, array in arrays.items():
        blocks = tuple(min(n, 20) for n in array.shape)
        keys = array.ndim - (1 if name in ("mask", "bias") else 2)
        shards = tuple(40 if i == keys else n for i, n in enumerate(blocks))
        stored[name] = zarr.create_array(
            folder / name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=blocks,
            shards=shards if "shards" in kind else None,
        )
        stored[name][...] = array
    return stored


@pytest.mark.parametrize("kind", ["memmap", "zarr", "zarr shards", "h5py", "h5py contiguous"])
def test_arrays_in_files(kind, tmp_path):
    """The bits equal the result with arrays in memory, masks included, and chunks are whole blocks
    of the file."""
    arrays = {"key": KEY, "value": VALUE, "mask": MASK, "bias": BIAS}
    with contextlib.ExitStack() as files:
        stored = in_files(kind, arrays, tmp_path, files)
        pair = stored["key"], stored["value"]
        chunks = regard.KeyValueChunks(*pair, length=30)
        in_memory = regard.KeyValueChunks(KEY, VALUE, length=30)
        masks = ((stored["mask"], stored["bias"]), (MASK, BIAS)), (stored["mask"], MASK)
        for mask, same in (*masks, (None, None)):
            for options in ({}, {"is_causal": True, "query_offset": 100}):
                wanted = stream(QUERY, in_memory, same, return_lse=True, **options)
                actual = stream(QUERY, chunks, mask, return_lse=True, **options)
                assert_same_bits(actual, wanted)
        length = regard.KeyValueChunks(*pair).length
        assert length > 200
        assert length % {"zarr": 20, "zarr shards": 40}.get(kind, 1) == 0
        assert_same_bits(stream(QUERY, [pair]), stream(QUERY, [(KEY, VALUE)]))
