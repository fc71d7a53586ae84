"""Check and measure the programs in C++ that are not steps of one call."""

import ctypes
import itertools

import measure
import numpy as np
import stable

from regard import scaled_dot_product_attention

HEADS, KEYS = 8, 8192


def pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    """Return the addresses of arrays."""
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def decode(library: ctypes.CDLL) -> None:
    """Compare decoding with float64, and with the speed at which memory is read."""
    normal = np.random.default_rng(2).standard_normal
    sets = [
        [normal((HEADS, rows, measure.HEAD_DIM), np.float32) for rows in (1, KEYS, KEYS)]
        for _ in range(6)
    ]
    output = np.empty_like(sets[0][0])

    def call(arrays: list[np.ndarray], threads: int) -> None:
        library.decode(*pointers(*arrays, output), HEADS, KEYS, threads)

    tolerance = 16 * np.finfo(np.float32).eps
    large = [8 * sets[0][0], *sets[0][1:]]  # whose references move
    for arrays, most in ((sets[0], tolerance), (large, 8 * tolerance)):
        call(arrays, 1)
        heads = zip(*(array.astype(float) for array in arrays), strict=True)
        expected = np.stack([stable.attention(*head) for head in heads])
        np.testing.assert_allclose(output, expected, rtol=0, atol=most)
    print(f"largest error {abs(output - expected).max():.1e}, with large scores")
    moved = sets[0][1].nbytes + sets[0][2].nbytes
    for threads in sorted({1, measure.CORES}):
        turns = itertools.cycle(sets)  # more than caches hold
        seconds = measure.median_time(lambda n=threads, t=turns: call(next(t), n), 18)
        share = moved / seconds / measure.bandwidth(threads)
        cores = f"{threads} core{'s' * (threads > 1)}"
        print(f"decode.cpp: {share:.0%} of the read bandwidth of {cores}")


def eight_bits(library: ctypes.CDLL) -> None:
    """Compare sums of integers with NumPy's, and their speed with that of float32."""
    rows, has_instruction = library.queries_of_a_strip(), library.has_instruction()
    draw = np.random.default_rng(4).integers
    query = draw(-127, 128, (rows, measure.HEAD_DIM), np.int8)
    key = draw(-127, 128, (measure.LENGTH, measure.HEAD_DIM), np.int8)
    sums = np.empty((measure.LENGTH, rows), np.int32)
    as_floats = query.astype(np.float32), key.astype(np.float32), np.empty_like(sums, "f")

    def in_integers() -> None:
        library.integer_scores(*pointers(query, key, sums), measure.LENGTH)

    def in_floats() -> None:
        library.float_scores(*pointers(*as_floats), measure.LENGTH)

    in_integers()
    in_floats()
    np.testing.assert_array_equal(sums, key.astype(int) @ query.T.astype(int))
    np.testing.assert_array_equal(as_floats[2], sums)  # below 2 ** 24, float32 is exact too
    print(f"{sums.size} sums of {measure.HEAD_DIM} products of integers: all exact")
    if not has_instruction:
        measure.cannot_show(
            "a gain: it has no instruction that multiplies four bytes in a lane"
        )
        return
    gains = [
        measure.median_time(in_floats, 99) / measure.median_time(in_integers, 99)
        for _ in range(5)
    ]
    print(f"speed relative to float32: {np.median(gains):.2f}")


def backward(library: ctypes.CDLL) -> None:
    """Compare gradients with the program in NumPy, in float64, and measure them."""
    import gradients

    arrays = measure.problem()
    output, lse = scaled_dot_product_attention(*arrays, return_lse=True)
    grad_output = np.random.default_rng(3).standard_normal(output.shape, np.float32)
    mean = (grad_output * output).sum(axis=-1)
    given = [grad_output, *arrays, lse, mean]
    found = np.empty_like(arrays)

    def call() -> None:
        found[1:] = 0
        library.backward(*pointers(*given, *found), measure.LENGTH)

    call()
    exact = [array.astype(float) for array in (grad_output, *arrays)]
    output, lse = scaled_dot_product_attention(*exact[1:], return_lse=True)
    for own, expected in zip(found, gradients.gradients(*exact, output, lse), strict=True):
        largest = abs(expected).max()
        np.testing.assert_allclose(own, expected, rtol=0, atol=2e-5 * max(1, largest))
    print(f"largest error of a value's gradient {abs(found[2] - expected).max():.1e}")
    share = 2.5 * measure.work() / measure.median_time(call) / measure.peak()
    print(f"backward.cpp: {share:.1%} of the peak of 1 core, for five products")
