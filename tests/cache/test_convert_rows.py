"""What a cache keeps of new tokens has the bits that NumPy's conversion gives."""

import numpy as np
import pytest

import regard
from regard._core import convert_rows

TYPES = ("float32", "float16", "bfloat16")


def dtype_of(name):
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name) if name[0] == "b" else name)


def numbers(source, target, shape):
    """Every finite number of 16 bits, or of 32 any bits, that `target` can hold; and the others."""
    if source.itemsize == 2:
        every = np.arange(2**16, dtype=np.uint16).view(source)
    else:
        bits = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32)
        every = bits.view(np.float32)
        # Halfway between two neighbours, and one step to each side.
        halves = np.arange(2**16, dtype=np.uint16).view(target).astype(np.float32)
        place = 2 ** (12 if target.name == "float16" else 15)
        nearby = halves.view(np.uint32) + np.uint32(place)
        steps = np.arange(-1, 2, dtype=np.int32).astype(np.uint32)
        more = (nearby[:, None] + steps).ravel().view(np.float32)
        every = np.concatenate([every, more])
    with np.errstate(over="ignore", invalid="ignore"):
        fits = np.isinf(every.astype(target)) == np.isinf(every)
    return np.resize(every[fits], shape)


LAYOUTS = {
    "contiguous": lambda array: array,
    "heads last": lambda array: array.transpose(0, 2, 1, 3),
    "every other row": lambda array: array[:, :, ::2],
    "backwards": lambda array: array[:, ::-1, ::-1],
    "one number a row": lambda array: array[..., :1],
    "odd": lambda array: array[:, :, 3:10, 1:],
    "nothing": lambda array: array[:, :, :0],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kept", TYPES)
@pytest.mark.parametrize("given", TYPES)
def test_bits_are_those_of_numpy(given, kept, layout, target):
    source_type, target_type = dtype_of(given), dtype_of(kept)
    shape = (2, 4, 60, 700)
    source = layout(numbers(source_type, target_type, shape))
    room, want = np.zeros(shape, target_type), np.zeros(shape, target_type)
    assert convert_rows(source, layout(room))
    as_bits = np.dtype(f"u{target_type.itemsize}")
    with np.errstate(invalid="ignore"):  # NaN
        layout(want)[...] = source
        is_number = ~np.isnan(want)
        assert (np.isnan(room) == ~is_number).all()
    assert (room.view(as_bits) == want.view(as_bits))[is_number].all()


@pytest.mark.parametrize("name", ["int8", "float64"])
def test_any_type_may_be_copied(name, target):
    source = np.random.default_rng(0).integers(-127, 128, (3, 5, 7000)).astype(name)
    room = np.zeros((3, 9, 7000), name)
    assert convert_rows(source, room[:, 2:7])
    assert np.array_equal(room[:, 2:7], source)
    assert not room[:, :2].any()
    assert not room[:, 7:].any()


READ_ONLY = np.zeros((2, 3), np.float32)
READ_ONLY.flags.writeable = False
OTHERS = {
    "float64 to float32": (np.zeros((2, 3)), np.zeros((2, 3), np.float32)),
    "int8 to float32": (np.zeros((2, 3), np.int8), np.zeros((2, 3), np.float32)),
    "another shape": (np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32)),
    "columns apart": (np.zeros((2, 6), np.float32)[:, ::2], np.zeros((2, 3), np.float32)),
    "another order of bytes": (np.zeros((2, 3), ">f4"), np.zeros((2, 3), np.float32)),
    "read-only": (np.zeros((2, 3), np.float32), READ_ONLY),
    "a number": (np.zeros((), np.float32), np.zeros((), np.float32)),
}


@pytest.mark.parametrize(("source", "room"), OTHERS.values(), ids=OTHERS)
def test_others_are_left_to_numpy(source, room):
    before = room.copy()
    assert not convert_rows(source, room)
    assert np.array_equal(room, before)


LARGEST = {"float16": 65519.996, "bfloat16": 3.3961773e38}


@pytest.mark.parametrize("position", [0, 17, 69_999])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("kept", LARGEST)
def test_what_becomes_infinite_is_found(kept, sign, position, target):
    source, room = np.zeros(70_000, np.float32), np.zeros(70_000, dtype_of(kept))
    source[5] = np.inf
    source[position] = sign * np.float32(LARGEST[kept])
    assert convert_rows(source, room)
    source[position] = np.nextafter(source[position], np.float32(sign * np.inf))
    assert not convert_rows(source, room)


@pytest.mark.parametrize("tokens", [1, 3000])
@pytest.mark.parametrize("page_size", [None, 16])
def test_a_cache_warns_of_what_becomes_infinite(tokens, page_size):
    cache = regard.KVCache(1, 2, 16, dtype=np.float16, page_size=page_size)
    new = np.ones((1, 2, tokens, 16), np.float32)
    cache.append(new, new)
    new[0, 1, -1, 3] = 1e6
    with pytest.warns(RuntimeWarning, match="overflow"):
        cache.append(new, new)
    assert len(cache) == 2 * tokens
