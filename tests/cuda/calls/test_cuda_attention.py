"""Test a call on a device from arrays to launches and results, on a GPU or with emulated kernels,
against the oracle in float64."""

import gc

import numpy as np
import pytest

import regard
from cases import AXES, SIZES, Case
from cuda_arrays import DLPackArray
from cuda_emulation import expected, flattened, gpu_problem
from element_types import each_in_one_type, type_named
from error_limits import assert_matches
from option_cases import LONG, MIXES

# The kernels for 16 bits multiply weights rounded to 16 bits.
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
ON_A_DEVICE = ("query_offset", "key_lengths", "left_padding", "alibi_slopes", "sinks")


def close(actual, wanted, dtype):
    tolerance = TOLERANCES[dtype.name]
    np.testing.assert_allclose(
        actual.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance
    )


# The largest relative error of a GPU's exp2, which the emulation computes exactly. A row's weights
# change by this much in the numerator and in the denominator.
EXP2_ERROR = 2.0**-22


def check(results, problem):
    """Compare output and lse with the oracle."""
    query, key, value, options = flattened(problem)
    want = expected(query, key, value, **options)
    largest = np.abs(value.astype(np.float64)).max(initial=0)
    limit = want.limit._replace(
        output=want.limit.output + 2 * EXP2_ERROR * largest, lse=want.limit.lse + EXP2_ERROR
    )
    output, lse = (x if isinstance(x, np.ndarray) else x.to_numpy() for x in results)
    assert output.shape[:-1] == lse.shape
    assert_matches(
        want._replace(limit=limit),
        output=output.reshape(want.exact.output.shape),
        lse=lse.reshape(want.exact.lse.shape),
    )


@each_in_one_type([*AXES, *SIZES, *LONG, *MIXES], "single_or_half", quick=7)
def test_axes_sizes_and_options(case, single_or_half, cuda):
    problem = gpu_problem(case, single_or_half)
    results = regard.scaled_dot_product_attention(
        *problem.arrays, **problem.options, return_lse=True, device="cuda"
    )
    check(results, problem)


def on_device(cuda, array):
    """Return an array as another library would pass it, through DLPack."""
    return DLPackArray(cuda.to_device(array), dtype=array.dtype)


@each_in_one_type(MIXES[::6], "single_or_half")
def test_arrays_and_numbers_on_a_device(case, single_or_half, cuda):
    problem = gpu_problem(case, single_or_half)
    arrays = [on_device(cuda, array) for array in problem.arrays]
    options = dict(problem.options)
    if "mask" in options:
        options["mask"] = on_device(cuda, options["mask"])
    for name in ON_A_DEVICE:
        if name in options and (np.ndim(options[name]) or name in ("alibi_slopes", "sinks")):
            integers = name not in ("alibi_slopes", "sinks")
            shape = problem.batch if integers else np.shape(options[name])
            numbers = np.broadcast_to(options[name], shape)
            options[name] = cuda.to_device(numbers.astype(np.int32 if integers else np.float32))
    results = regard.scaled_dot_product_attention(*arrays, **options, return_lse=True)
    assert all(isinstance(result, cuda.DeviceArray) for result in results)
    check(results, problem)
    gc.collect()
    assert all(array.deleted == 1 for array in arrays)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=["plain", "options"])
@pytest.mark.parametrize("dims", [(64, 64), (72, 128), (8, 256)], ids=str)
def test_every_kernel(dims, options, single_or_half, cuda):
    """Each kernel runs at its widest values. The keys of one query are read in chunks, which are
    merged."""
    dim, value_dim = dims
    for q_len in (1, 40):
        case = Case("kernel", (2, 2, q_len, dim), (2, 1, 600, dim), (2, 1, 600, value_dim))
        problem = gpu_problem(case, single_or_half)
        problem = type(problem)(*problem.arrays, options)
        results = regard.scaled_dot_product_attention(
            *problem.arrays, **options, return_lse=True, device="cuda"
        )
        check(results, problem)


STRIDED = Case("strided", (2, 3, 4, 7, 24), (2, 3, 2, 9, 24), (2, 3, 2, 9, 16))
LAYOUTS = {
    "heads after length": lambda a: a.swapaxes(-3, -2).copy().swapaxes(-3, -2),
    "batch axes swapped": lambda a: a.swapaxes(0, 1).copy().swapaxes(0, 1),
    "rows apart": lambda a: np.repeat(a, 2, axis=-2)[..., ::2, :],
    "columns beside others": lambda a: np.concatenate([a, a], axis=-1)[..., : a.shape[-1]],
    "odd addresses": lambda a: np.concatenate([a[..., :1], a], axis=-1)[..., 1:],
    "rows backwards": lambda a: a[..., ::-1, :].copy()[..., ::-1, :],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides(name, single_or_half, cuda):
    """Arrays are read in place, whatever is around them."""
    problem = STRIDED.build(single_or_half)
    strided, arrays = [], []
    for array in problem.arrays:
        laid = LAYOUTS[name](array)
        memory = laid
        while memory.base is not None:
            memory = memory.base
        offset = laid.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        whole = cuda.to_device(memory)
        steps = tuple(step // laid.itemsize for step in laid.strides)
        strided.append(DLPackArray(whole, laid.shape, steps, laid.dtype, byte_offset=offset))
        arrays.append(laid)
    output, lse = cuda.scaled_dot_product_attention(*strided, return_lse=True)
    wanted = type(problem)(*arrays, {})
    check((output, lse), wanted)


def test_output_into_an_array(cuda):
    problem = STRIDED.build(np.dtype(np.float32))
    query, key, value = (cuda.to_device(array) for array in problem.arrays)
    room = cuda.to_device(np.full((2, 3, 4, 7, 2 * 16), 5, np.float32))
    strides = tuple(n // 4 for n in np.empty((2, 3, 4, 7, 32), np.float32).strides)
    out = DLPackArray(room, (2, 3, 4, 7, 16), strides, np.float32)
    assert cuda.scaled_dot_product_attention(query, key, value, out=out) is out
    wanted = regard.scaled_dot_product_attention(*problem.arrays)
    written = room.to_numpy()
    close(written[..., :16], wanted, np.dtype(np.float32))
    assert (written[..., 16:] == 5).all(), "the memory between the rows must not change"


RAGGED = {
    "plain": {},
    "causal to the end": {"is_causal": True, "query_offset": "end"},
    "offsets": {"is_causal": True, "query_offset": [3, 0, -1, 2]},
    "lengths": {"key_lengths": [4, 0, 1, 690], "left_padding": [1, 0, 0, 600]},
    "mask": {"mask": (9, 1, 700)},
    "bias": {"mask": (9, 4, 700)},
    "scores": {"softcap": 2.0, "scale": 0.7, "sinks": [0.5, -1, 2, 0], "window": (50, 3)},
    "slopes": {"alibi_slopes": [0.5, 0.1, -0.2, 0.0]},
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged(name, single_or_half, cuda):
    random = np.random.default_rng(1)
    query, key, value = (
        random.standard_normal(shape).astype(single_or_half)
        for shape in ((9, 4, 24), (709, 2, 24), (709, 2, 40))
    )
    starts = [0, 3, 3, 4, 9], [0, 5, 8, 9, 709]
    options = dict(RAGGED[name])
    if "mask" in options:
        mask = random.random(options["mask"]) < 0.6
        options["mask"] = mask if name == "mask" else mask * np.float32(2) - 1
    single = [array.astype(np.float32) for array in (query, key, value)]
    wanted = regard.scaled_dot_product_attention_ragged(
        *single, *starts, **options, return_lse=True
    )
    results = regard.scaled_dot_product_attention_ragged(
        query, key, value, *starts, **options, return_lse=True, device="cuda"
    )
    for actual, exact in zip(results, wanted, strict=True):
        close(actual, exact, single_or_half)
    if "mask" in options:
        options["mask"] = cuda.to_device(options["mask"])
    arrays = [on_device(cuda, array) for array in (query, key, value)]
    again = regard.scaled_dot_product_attention_ragged(*arrays, *starts, **options)
    assert again.to_numpy().tobytes() == results[0].tobytes()


def test_masks_on_the_device(cuda):
    """Biases of every type, and a pair; the bias of a pair from NumPy may be float64."""
    random = np.random.default_rng(3)
    query, key, value = (random.standard_normal((2, 4, 9, 16), np.float32) for _ in range(3))
    seen, bias = random.random((2, 1, 1, 9)) < 0.6, random.standard_normal((4, 9, 9))
    biases = [bias.astype(type_named(name)) for name in ("float16", "bfloat16", "float32")]
    arrays = [cuda.to_device(each) for each in (query, key, value)]
    for mask in (*biases, (seen, biases[2])):
        if isinstance(mask, tuple):
            given, wide = tuple(map(cuda.to_device, mask)), mask
        else:
            given, wide = cuda.to_device(mask), mask.astype(np.float32)
        wanted = regard.scaled_dot_product_attention(query, key, value, wide)
        actual = cuda.scaled_dot_product_attention(*arrays, given).to_numpy()
        close(actual, wanted, np.dtype(np.float32))
    wanted = regard.scaled_dot_product_attention(query, key, value, (seen, bias))
    actual = regard.scaled_dot_product_attention(query, key, value, (seen, bias), device="cuda")
    close(actual, wanted, np.dtype(np.float32))


def test_hidden_keys_may_hold_anything(cuda):
    random = np.random.default_rng(4)
    query, key, value = (random.standard_normal((2, 40, 16), np.float32) for _ in range(3))
    wanted = regard.scaled_dot_product_attention(query, key, value, key_lengths=30, device="cuda")
    for array in (key, value):
        array[:, 30:] = np.nan
    actual = regard.scaled_dot_product_attention(query, key, value, key_lengths=30, device="cuda")
    assert actual.tobytes() == wanted.tobytes()
