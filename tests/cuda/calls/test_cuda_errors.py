"""Test invalid arguments of a call on a device: the class of the error, and the message."""

import numpy as np
import pytest

import regard
from cuda_arrays import DLPackArray
from messages import says


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.fixture
def call(cuda):
    """Call with a problem whose sizes are all different, with changes, which may be NumPy
    arrays."""

    def on_device(value):
        if isinstance(value, tuple) and any(isinstance(each, np.ndarray) for each in value):
            return tuple(map(on_device, value))
        return cuda.to_device(value) if isinstance(value, np.ndarray) else value

    def call(function=cuda.scaled_dot_product_attention, **changes):
        arguments = {
            "query": normal(2, 14, 5, 64),
            "key": normal(2, 7, 11, 64),
            "value": normal(2, 7, 11, 32),
        } | changes
        for name in ("query", "key", "value", "mask", "out"):
            if name in arguments:
                arguments[name] = on_device(arguments[name])
        return function(**arguments)

    return call


SHAPES = {
    "query-0d": ({"query": np.float32([1])[0:1].reshape(())}, ["query", "2 dimensions"]),
    "query-1d": ({"query": normal(64)}, ["query", "64"]),
    "value-1d": ({"value": normal(32)}, ["value", "32"]),
    "head-dim": ({"key": normal(2, 7, 11, 48)}, ["query", "key", "head_dim", "64", "48"]),
    "head-dim-zero": (
        {"query": normal(2, 14, 5, 0), "key": normal(2, 7, 11, 0)},
        ["head_dim", "0"],
    ),
    "head-dim-wide": (
        {"query": normal(2, 14, 5, 257), "key": normal(2, 7, 11, 257)},
        ["query", "head_dim", "256", "257", "CPU"],
    ),
    "value-dim-wide": ({"value": normal(2, 7, 11, 300)}, ["value", "value_dim", "256", "300"]),
    "kv-len": ({"value": normal(2, 7, 13, 32)}, ["key", "value", "kv_len", "11", "13"]),
    "kv-heads": ({"value": normal(2, 14, 11, 32)}, ["key", "value", "7", "14"]),
    "heads-no-multiple": ({"query": normal(2, 16, 5, 64)}, ["query", "key", "16", "7"]),
    "heads-of-none": (
        {"key": normal(2, 0, 11, 64), "value": normal(2, 0, 11, 32)},
        ["query", "key", "14", "0"],
    ),
    "heads-after-length": (
        {
            "query": normal(1, 100, 8, 4),
            "key": normal(1, 120, 8, 4),
            "value": normal(1, 120, 8, 4),
        },
        ["query", "key", "query.swapaxes"],
    ),
    "batch": ({"query": normal(3, 14, 5, 64)}, ["query", "key", "value", "3", "2"]),
    "mask-kv-len": ({"mask": np.ones((5, 12), bool)}, ["mask", "5", "12", "11"]),
    "mask-heads": ({"mask": np.ones((2, 7, 5, 11), bool)}, ["mask", "7", "14"]),
    "mask-larger": ({"mask": np.ones((3, 2, 14, 5, 11), bool)}, ["mask", "3", "14"]),
    "offset-shape": ({"query_offset": np.array([1, 2, 3])}, ["query_offset", "3", "2"]),
    "offset-far": ({"query_offset": 2**29}, ["query_offset", str(2**29 - 1), str(2**29)]),
    "offset-farther": ({"query_offset": -(2**70)}, ["query_offset", str(-(2**70))]),
    "offset-word": ({"query_offset": "start"}, ["query_offset", "end", "start"]),
    "lengths-negative": ({"key_lengths": [-1, 2]}, ["key_lengths", "0", "11", "-1"]),
    "lengths-long": ({"key_lengths": 12}, ["key_lengths", "11", "12"]),
    "padding-long": ({"left_padding": [3, 12]}, ["left_padding", "11", "12"]),
    "window-negative": ({"window": (-1, 0)}, ["window", "-1"]),
    "window-of-three": ({"window": (1, 2, 3)}, ["window", "3"]),
    "scale-nan": ({"scale": np.nan}, ["scale", "nan"]),
    "softcap-zero": ({"softcap": 0}, ["softcap", "0"]),
    "slopes-shape": ({"alibi_slopes": np.ones(7)}, ["alibi_slopes", "14", "7"]),
    "slopes-batch": ({"alibi_slopes": np.ones((3, 14))}, ["alibi_slopes", "3", "14"]),
    "slopes-infinite": ({"alibi_slopes": np.full(14, np.inf)}, ["alibi_slopes", "inf"]),
    "slopes-in-float32": ({"alibi_slopes": np.full(14, 1e300)}, ["alibi_slopes", "float32"]),
    "sinks-shape": ({"sinks": np.ones((2, 14))}, ["sinks", "14", "2"]),
    "sinks-nan": ({"sinks": np.full(14, np.nan)}, ["sinks", "nan"]),
    "out-shape": ({"out": normal(2, 14, 5, 31)}, ["out", "31", "32"]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_values_that_are_refused(name, call):
    changes, words = SHAPES[name]
    with pytest.raises(ValueError, match=says(*words)):
        call(**changes)


KINDS = {
    "float64": ({"query": normal(2, 14, 5, 64, dtype=np.float64)}, ["query", "float64", "float32"]),
    "integers": ({"value": np.ones((2, 7, 11, 32), np.int32)}, ["value", "int32"]),
    "mixed": (
        {"key": normal(2, 7, 11, 64, dtype=np.float16)},
        ["query", "key", "one type", "float32", "float16"],
    ),
    "list": ({"query": [[1.0]]}, ["query", "CUDA device", "list"]),
    "none": ({"value": None}, ["value", "CUDA device", "NoneType"]),
    "mask-integer": ({"mask": np.ones((5, 11), np.int32)}, ["mask", "int32", "bool"]),
    "mask-float64": ({"mask": np.ones((5, 11))}, ["mask", "float64", "float32"]),
    "mask-pair": (
        {"mask": (np.ones((5, 11), np.float32), np.ones((5, 11), bool))},
        ["mask", "pair", "float32", "bool"],
    ),
    "mask-of-three": ({"mask": (1, 2, 3)}, ["mask", "CUDA device", "tuple"]),
    "causal": ({"is_causal": 1}, ["is_causal", "int"]),
    "lse": ({"return_lse": "yes"}, ["return_lse", "str"]),
    "offset": ({"query_offset": 1.5}, ["query_offset", "float"]),
    "lengths": ({"key_lengths": [1.5, 2]}, ["key_lengths", "float64"]),
    "window": ({"window": 3}, ["window", "pair"]),
    "scale": ({"scale": "small"}, ["scale", "str"]),
    "scales": ({"scale": np.ones(14)}, ["scale", "one number", "GPU"]),
    "softcaps": ({"softcap": [2.0] * 14}, ["softcap", "one number", "GPU"]),
    "distances": ({"distance_bias": np.ones((14, 3))}, ["distance_bias", "leave it out"]),
    "function": ({"score_function": None}, ["score_function", "leave it out"]),
    "sparse mask": ({"mask": regard.masks.Ranges(0, np.full(5, 9))}, ["mask", "to_dense"]),
    "slopes": ({"alibi_slopes": ["a"] * 14}, ["alibi_slopes"]),
    "out-type": ({"out": normal(2, 14, 5, 32, dtype=np.float16)}, ["out", "float32", "float16"]),
    "out-of-numpy": ({"out": None, "return_weights": True}, ["return_weights", "leave it out"]),
    "precision": ({"precision": "int8"}, ["precision", "leave it out"]),
    "threads": ({"threads": 2}, ["threads", "leave it out"]),
    "device": ({"device": "cuda"}, ["device", "leave it out"]),
    "attn_mask": ({"attn_mask": None}, ["attn_mask", "mask="]),
    "unknown": ({"color": 1}, ["color", "is_causal"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_that_are_refused(name, call):
    changes, words = KINDS[name]
    with pytest.raises(TypeError, match=says(*words)):
        call(**changes)


def test_arrays_of_numpy_beside_those_of_a_device(call, cuda):
    host = normal(2, 7, 11, 64)
    query, key = cuda.to_device(normal(2, 14, 5, 64)), cuda.to_device(host)
    for function in (cuda.scaled_dot_product_attention, regard.scaled_dot_product_attention):
        with pytest.raises(TypeError, match=says("key", "NumPy", "regard.cuda.to_device")):
            function(query, host, key)
        with pytest.raises(TypeError, match=says("mask", "NumPy")):
            function(query, key, key, np.ones((5, 11), bool))


TOP = {
    "weights": ({"return_weights": True}, TypeError, ["return_weights", "leave it out"]),
    "precision": ({"precision": "int8"}, TypeError, ["precision", "leave it out"]),
    "threads": ({"threads": 2}, TypeError, ["threads", "leave it out"]),
    "distances": (
        {"distance_bias": np.ones((14, 3))},
        TypeError,
        ["distance_bias", "leave it out"],
    ),
    "on the CPU": ({"device": "cpu"}, ValueError, ["device", "cpu", "host"]),
    "another device": ({"device": "gpu"}, ValueError, ["device", "cuda", "gpu"]),
    "unknown": ({"color": 1}, TypeError, ["color", "is_causal"]),
}


@pytest.mark.parametrize("name", TOP)
def test_the_top_level_call_refuses_what_a_gpu_cannot_do(name, call):
    changes, kind, words = TOP[name]
    with pytest.raises(kind, match=says(*words)):
        call(regard.scaled_dot_product_attention, **changes)


def test_the_top_level_call_takes_defaults_of_the_cpu(call):
    options = {"return_weights": False, "precision": None, "threads": None, "device": "cuda"}
    result = call(regard.scaled_dot_product_attention, **options)
    assert result.shape == (2, 14, 5, 32)


def test_arrays_on_two_devices(machine, cuda):
    machine.set(devices=2)
    x, y = (cuda.to_device(normal(2, 3, 4), device=number) for number in (0, 1))
    assert (x.device, y.device) == (0, 1)
    with pytest.raises(ValueError, match=says("key", "device", "0", "1")):
        cuda.scaled_dot_product_attention(x, y, x)
    with pytest.raises(ValueError, match=says("mask", "device", "0", "1")):
        cuda.scaled_dot_product_attention(x, x, x, cuda.to_device(normal(3, 3), device=1))
    with pytest.raises(ValueError, match=says("out", "device", "0", "1")):
        cuda.scaled_dot_product_attention(x, x, x, out=y)
    result = cuda.scaled_dot_product_attention(y, y, y)
    assert result.device == 1
    assert machine.module.current_device() == 0, "the caller's device must not change"


def test_output_over_an_input(cuda):
    room = cuda.to_device(np.zeros((3, 2, 4, 8), np.float32))
    query, key, out = (
        DLPackArray(room, (2, 4, 8), None, np.float32, byte_offset=0) for _ in range(3)
    )
    with pytest.raises(ValueError, match=says("out", "overlap", "query")):
        cuda.scaled_dot_product_attention(query, key, key, out=out)


def test_output_between_the_rows_of_an_input(cuda):
    """Queries and outputs may be columns of the same rows."""
    rows = normal(2, 4, 16)
    room = cuda.to_device(rows)
    query = DLPackArray(room, (2, 4, 8), (64, 16, 1), np.float32)

    class Beside(DLPackArray):
        def _tensor(self):
            tensor = super()._tensor()
            tensor.byte_offset = 8 * 4
            return tensor

    out = Beside(room, (2, 4, 8), (64, 16, 1), np.float32)
    key = cuda.to_device(normal(2, 5, 8))
    cuda.scaled_dot_product_attention(query, key, key, out=out)
    written = room.to_numpy()
    assert np.array_equal(written[..., :8], rows[..., :8])
    wanted = regard.scaled_dot_product_attention(rows[..., :8], *[normal(2, 5, 8)] * 2)
    np.testing.assert_allclose(written[..., 8:], wanted, rtol=2e-5, atol=2e-5)


def test_output_that_repeats_an_element(cuda):
    room, x = cuda.to_device(np.zeros((2, 4, 8), np.float32)), cuda.to_device(normal(2, 4, 8))
    out = DLPackArray(room, (2, 4, 8), (0, 8, 1), np.float32)
    with pytest.raises(ValueError, match=says("out", "separate element")):
        cuda.scaled_dot_product_attention(x, x, x, out=out)


NUMBERS_ON_A_DEVICE = {
    "lengths-type": ({"key_lengths": np.ones(2, np.int64)}, ["key_lengths", "int32", "int64"]),
    "lengths-shape": ({"key_lengths": np.ones(1, np.int32)}, ["key_lengths", "(2,)", "(1,)"]),
    "offset-shape": ({"query_offset": np.ones((), np.int32)}, ["query_offset", "(2,)", "()"]),
    "slopes-type": ({"alibi_slopes": np.ones(14, np.float16)}, ["alibi_slopes", "float16"]),
    "slopes-shape": ({"alibi_slopes": np.ones(13, np.float32)}, ["alibi_slopes", "14", "13"]),
    "sinks-shape": ({"sinks": np.ones((2, 14), np.float32)}, ["sinks", "14"]),
}


@pytest.mark.parametrize("name", NUMBERS_ON_A_DEVICE)
def test_numbers_on_a_device_that_are_refused(name, call, cuda):
    changes, words = NUMBERS_ON_A_DEVICE[name]
    changes = {option: cuda.to_device(array) for option, array in changes.items()}
    with pytest.raises((TypeError, ValueError), match=says(*words)):
        call(**changes)


STARTS = {
    "begin": (([1, 9], [0, 9]), ValueError, ["query_starts", "0", "1"]),
    "end": (([0, 9], [0, 8]), ValueError, ["key_starts", "9", "8"]),
    "down": (([0, 5, 3, 9], [0, 3, 6, 9]), ValueError, ["query_starts", "decrease", "3", "5"]),
    "count": (([0, 5, 9], [0, 9]), ValueError, ["query_starts", "key_starts", "3", "2"]),
    "axes": (([[0, 9]], [0, 9]), ValueError, ["query_starts", "(1, 2)"]),
    "none": (([], [0, 9]), ValueError, ["query_starts", "sequences + 1"]),
    "floats": (([0.0, 9.0], [0, 9]), TypeError, ["query_starts", "float64"]),
}


@pytest.mark.parametrize("name", STARTS)
def test_starts_that_are_refused(name, cuda):
    starts, kind, words = STARTS[name]
    x = cuda.to_device(normal(9, 2, 8))
    with pytest.raises(kind, match=says(*words)):
        cuda.scaled_dot_product_attention_ragged(x, x, x, *starts)


def test_starts_on_a_device(cuda):
    x = cuda.to_device(normal(9, 2, 8))
    starts = cuda.to_device(np.array([0, 9], np.int32))
    for function in (
        cuda.scaled_dot_product_attention_ragged,
        regard.scaled_dot_product_attention_ragged,
    ):
        with pytest.raises(TypeError, match=says("query_starts", "host")):
            function(x, x, x, starts, starts)


def test_ragged_shapes_that_are_refused(cuda):
    x, flat = cuda.to_device(normal(9, 2, 8)), cuda.to_device(normal(9, 8))
    with pytest.raises(ValueError, match=says("query", "3 dimensions", "(9, 8)")):
        cuda.scaled_dot_product_attention_ragged(flat, x, x, [0, 9], [0, 9])
    with pytest.raises(ValueError, match=says("key_lengths", "6")):
        cuda.scaled_dot_product_attention_ragged(x, x, x, [0, 4, 9], [0, 5, 9], key_lengths=[6, 4])


def test_lengths_beyond_32_bits(cuda):
    """The arrays need no memory, since nothing is read before they are refused."""
    x = cuda.to_device(normal(1, 8))
    far = DLPackArray(x, (2**29, 8), (0, 1), np.float32)
    with pytest.raises(ValueError, match=says("kv_len", str(2**29))):
        cuda.scaled_dot_product_attention(x, far, far)
    with pytest.raises(ValueError, match=says("q_len", str(2**29))):
        cuda.scaled_dot_product_attention(far, x, x)
