"""A cache stores new tokens with the bits of NumPy's conversion."""

from itertools import product

import numpy as np
import pytest

import regard
from reference import assert_same_bits

TYPES = ("float32", "float16", "bfloat16")


def dtype_of(name):
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), name) if name[0] == "b" else name)


def numbers(source, target, shape):
    """Return every finite 16-bit number, or 32-bit numbers with random bits, that `target` can
    hold; and the others."""
    if source.itemsize == 2:
        every = np.arange(2**16, dtype=np.uint16).view(source)
    else:
        bits = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32)
        every = bits.view(np.float32)
        # Halfway between two neighbors, and one step to each side.
        with np.errstate(invalid="ignore"):  # some CPUs report signaling NaNs
            halves = np.arange(2**16, dtype=np.uint16).view(target).astype(np.float32)
        place = 2 ** (12 if target.name == "float16" else 15)
        nearby = halves.view(np.uint32) + np.uint32(place)
        steps = np.arange(-1, 2, dtype=np.int32).astype(np.uint32)
        more = (nearby[:, None] + steps).ravel().view(np.float32)
        every = np.concatenate([every, more])
    with np.errstate(over="ignore", invalid="ignore"):
        fits = np.isinf(every.astype(target)) == np.isinf(every)
    return np.resize(every[fits], shape)


def not_aligned(array):
    moved = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    assert not moved.flags.aligned
    return moved


LAYOUTS = {
    "contiguous": lambda array: array,
    "heads last": lambda array: array.transpose(0, 2, 1, 3),
    "every other row": lambda array: array[:, :, ::2],
    "backwards": lambda array: array[:, ::-1, ::-1],
    "one number a row": lambda array: array[..., :1],
    "odd": lambda array: array[:, :, 3:10, 1:],
    "not aligned": lambda array: not_aligned(array[:, :, :4]),
    "columns apart": lambda array: array[..., ::3],
    "columns backwards": lambda array: array[..., ::-1],
    "read-only": lambda array: np.broadcast_to(array[:1, :, :1], array.shape),
}


def kept_of(source, kept, page_size, parts):
    batch, heads, count, dim = source.shape
    cache = regard.KVCache(batch, heads, dim, dtype=kept, page_size=page_size)
    for start, stop in zip((0, *parts), (*parts, count), strict=True):
        new = source[:, :, start:stop]
        cache.append(new, new)
    assert cache.keys.tobytes() == cache.values.tobytes()
    return cache.keys


PAIRS = list(product(TYPES, TYPES))
# Each layout with three of the pairs of types in the core, so that each pair meets three layouts.
CASES = [
    pytest.param(
        layout, *pair, marks=[pytest.mark.slow] * ((i + j) % 3 > 0), id=f"{layout}-{'-'.join(pair)}"
    )
    for i, layout in enumerate(LAYOUTS)
    for j, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("layout", "given", "kept"), CASES)
def test_bits_are_those_of_numpy(layout, given, kept, target):
    source_type, target_type = dtype_of(given), dtype_of(kept)
    every = numbers(source_type, target_type, (2, 2, 60, 300))
    with np.errstate(invalid="ignore"):
        every = np.where(np.isnan(every), every.dtype.type(0), every)
    source = LAYOUTS[layout](every)
    want = np.ascontiguousarray(source.astype(target_type))
    for page_size, parts in ((None, ()), (16, (1, 2, 4))):
        assert_same_bits(kept_of(source, target_type, page_size, parts), want)


@pytest.mark.parametrize("given", ["float64", ">f4", ">f8", "int32", "bool"])
@pytest.mark.parametrize("kept", ["float32", "float64", "float16"])
def test_any_type_is_converted_as_numpy_does(given, kept):
    source = (np.random.default_rng(0).standard_normal((2, 3, 40, 8)) * 10).astype(given)
    for layout in (LAYOUTS["contiguous"], LAYOUTS["columns apart"]):
        new = layout(source)
        assert_same_bits(kept_of(new, kept, 16, (1,)), np.ascontiguousarray(new.astype(kept)))


LARGEST = {"float16": 65519.996, "bfloat16": 3.3961773e38}


@pytest.mark.parametrize(
    ("kept", "sign", "position"),
    [("float16", 1, 0), ("bfloat16", -1, 17), ("float16", -1, 6999), ("bfloat16", 1, 6999)],
)
def test_what_becomes_infinite_is_found(kept, sign, position, target):
    """Overflow is an error if the caller asks for one; infinities in the input are not."""
    source = np.zeros((1, 1, 10, 7000), np.float32)
    source[0, 0, 4, 5] = np.inf
    source[0, 0, 9, position] = sign * np.float32(LARGEST[kept])
    cache = regard.KVCache(1, 1, 7000, dtype=dtype_of(kept))
    cache.append(source, source)
    source[0, 0, 9, position] = np.nextafter(source[0, 0, 9, position], np.float32(sign * np.inf))
    for first, dtype in product((0, 9), (np.float32, np.float64)):
        given = source[:, :, first:].astype(dtype)
        with (
            np.errstate(over="raise"),
            pytest.raises(FloatingPointError, match=f"overflow in key: .* in {kept}"),
        ):
            cache.append(given, given)
        assert len(cache) == 10
    with np.errstate(over="ignore"):
        cache.append(source, source)
    assert cache.keys[0, 0, 19, position] == sign * np.inf


def large(shape, dtype=np.float32):
    new = np.ones(shape, dtype)
    new[..., -1, 0] = 1e6
    return new


@pytest.mark.parametrize("given", ["float32", "float64", "bfloat16"])
def test_the_warning_names_the_argument_and_the_line_that_appends(given):
    new, usual = large((1, 1, 3, 4), dtype_of(given)), np.ones((1, 1, 3, 4), np.float32)
    cache = regard.KVCache(1, 1, 4, dtype=np.float16)
    with pytest.warns(RuntimeWarning) as told:
        cache.append(usual, new)
    (warning,) = told
    assert str(warning.message) == "overflow in value: finite numbers become infinite in float16"
    assert warning.filename == __file__
    assert np.isinf(cache.values[0, 0, -1, 0])
    assert np.isfinite(cache.keys).all()
    cache.append(new, new, lengths=[2])  # no warning of padding
