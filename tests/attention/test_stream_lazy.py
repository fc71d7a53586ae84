"""Lazy objects may be keys, values and masks of attend_stream, and what they return is kept
apart."""

import numpy as np
import pytest

import regard
from reference import assert_same_bits
from streams import CHUNKS, KEY, QUERY, SIZE, VALUE, no_thread_remains, stream  # noqa: F401


class Lazy:
    """An object like netCDF variables: slices are masked arrays, or shorter than they should be."""

    def __init__(self, array, make):
        self.array, self.make = array, make
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, index):
        return self.make(self.array[index])

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (np.ma.masked_array, TypeError, "masked array"),
        (lambda part: part[..., :-1, :], ValueError, "must have the shape that it had before"),
    ],
    ids=["masked", "shorter"],
)
def test_what_a_lazy_array_hands_over_is_checked(make, kind, message):
    key, value = (Lazy(np.ones((2, 100, 8)), make) for _ in range(2))
    with pytest.raises(kind, match=message):
        regard.attend_stream(np.ones((2, 5, 8)), regard.KeyValueChunks(key, value, length=30))


class Decoder:
    """A decoder that decodes arrays into one buffer, like a codec that reuses its memory."""

    def __init__(self):
        self.buffer = np.empty(2 * SIZE * 8)

    def part_of_buffer(self, array):
        made = self.buffer.view(np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)
        made[...] = array
        return made


class Foreign:
    """An array of a storage library: slices, a shape, and possibly its own kind of dtype."""

    def __init__(self, array, has_own_dtype, fails=None):
        self.array, self.fails, self.largest = array, fails, 0
        self.shape = array.shape
        self.dtype = "dtype of a library" if has_own_dtype else array.dtype

    def __getitem__(self, index):
        part = self.array[index]
        self.largest = max(self.largest, part.size)
        if self.fails is not None and part.size:
            raise self.fails
        return part


class ForeignReadByNumPy(Foreign):
    """One that NumPy reads too, as a whole."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self[...], dtype)


FOREIGN = [(Foreign, True), (Foreign, False), (ForeignReadByNumPy, True)]
# The functions that read parts of arrays, as functions of keys, values and a mask.
STREAMS = {
    "KeyValueChunks": lambda key, value, mask: stream(
        QUERY, regard.KeyValueChunks(key, value, length=SIZE)
    ),
    "mask": lambda key, value, mask: stream(
        QUERY, regard.KeyValueChunks(key, value, length=SIZE), mask
    ),
}
MASK = np.random.default_rng(7).random((2, 3, 200)) < 0.7


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize(("kind", "has_own_dtype"), FOREIGN)
def test_arrays_of_storage_libraries_are_never_read_whole(name, kind, has_own_dtype):
    arrays = [kind(array, has_own_dtype) for array in (KEY, VALUE, MASK)]
    assert_same_bits(STREAMS[name](*arrays), STREAMS[name](KEY, VALUE, MASK))
    for foreign in arrays:
        assert foreign.largest <= foreign.array.size * SIZE // 200


@pytest.mark.parametrize(("kind", "has_own_dtype"), FOREIGN)
def test_chunks_of_storage_libraries(kind, has_own_dtype):
    chunks = [[kind(array, has_own_dtype) for array in pair] for pair in CHUNKS]
    assert_same_bits(stream(QUERY, chunks, return_lse=True), stream(QUERY, CHUNKS, return_lse=True))


@pytest.mark.parametrize("broken", range(3))
@pytest.mark.parametrize(("kind", "has_own_dtype"), [*FOREIGN, (ForeignReadByNumPy, False)])
@pytest.mark.parametrize("error", [OSError("closed"), KeyError("closed"), RuntimeError("closed")])
def test_errors_of_reading_propagate(broken, kind, has_own_dtype, error):
    arrays = [
        kind(array, has_own_dtype, error if i == broken else None)
        for i, array in enumerate((KEY, VALUE, MASK))
    ]
    with pytest.raises(type(error)) as caught:
        STREAMS["mask"](*arrays)
    assert caught.value is error


class LazyChunk:
    """A lazy object without slices, as a list of chunks may hold."""

    def __init__(self, array, make):
        self.array, self.make = array, make
        self.shape, self.dtype = array.shape, array.dtype

    def __array__(self, dtype=None, copy=None):
        return self.make(self.array)


@pytest.mark.parametrize("kind", ["list", "tuple", "iterator", "KeyValueChunks"])
def test_lazy_objects_may_decode_into_one_buffer(kind):
    """The next chunk, and the value after its key, overwrite the previous data."""
    make = Decoder().part_of_buffer
    mask = np.random.default_rng(7).random((2, 3, 200)) < 0.7
    if kind == "KeyValueChunks":
        chunks = regard.KeyValueChunks(Lazy(KEY, make), Lazy(VALUE, make), length=SIZE)
        for pair, wanted in zip(chunks, CHUNKS, strict=True):
            assert_same_bits(pair, wanted)
    else:
        chunks = [tuple(LazyChunk(array, make) for array in pair) for pair in CHUNKS]
        chunks = {"list": list, "tuple": tuple, "iterator": iter}[kind](chunks)
    wanted = stream(QUERY, CHUNKS, mask, return_lse=True)
    assert_same_bits(stream(QUERY, chunks, Lazy(mask, make), return_lse=True), wanted)
