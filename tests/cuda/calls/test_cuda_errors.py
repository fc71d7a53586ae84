"""Test invalid arguments of a call on a device: the class of the error, and the message."""

import numpy as np
import pytest

import regard
from cuda_arrays import DLPackArray
from data_kinds import normal
from messages import each, says


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


REFUSED = [
    ({"query": np.float32([1])[0:1].reshape(())}, ValueError, "query ... 2 dimensions"),
    ({"query": normal(64)}, ValueError, "query ... 64"),
    ({"key": normal(2, 7, 11, 48)}, ValueError, "query ... key ... head_dim ... 64 ... 48"),
    ({"query": normal(2, 14, 5, 0), "key": normal(2, 7, 11, 0)}, ValueError, "head_dim ... 0"),
    (
        {"query": normal(2, 14, 5, 257), "key": normal(2, 7, 11, 257)},
        ValueError,
        "query ... head_dim ... 256 ... 257 ... CPU",
    ),
    ({"value": normal(2, 7, 11, 300)}, ValueError, "value ... value_dim ... 256 ... 300"),
    ({"value": normal(2, 7, 13, 32)}, ValueError, "key ... value ... kv_len ... 11 ... 13"),
    ({"query": normal(2, 16, 5, 64)}, ValueError, "query ... key ... 16 ... 7"),
    (
        {"query": normal(1, 100, 8, 4), "key": normal(1, 120, 8, 4), "value": normal(1, 120, 8, 4)},
        ValueError,
        "query ... key ... query.swapaxes",
    ),
    ({"query": normal(3, 14, 5, 64)}, ValueError, "query ... key ... value ... 3 ... 2"),
    ({"mask": np.ones((5, 12), bool)}, ValueError, "mask ... 5 ... 12 ... 11"),
    ({"mask": np.ones((3, 2, 14, 5, 11), bool)}, ValueError, "mask ... 3 ... 14"),
    ({"query_offset": np.array([1, 2, 3])}, ValueError, "query_offset ... 3 ... 2"),
    ({"query_offset": 2**29}, ValueError, "query_offset ... 536870911 ... 536870912"),
    ({"query_offset": "start"}, ValueError, "query_offset ... end ... start"),
    ({"key_lengths": [-1, 2]}, ValueError, "key_lengths ... 0 ... 11 ... -1"),
    ({"window": (-1, 0)}, ValueError, "window ... -1"),
    ({"alibi_slopes": np.ones(7)}, ValueError, "alibi_slopes ... 14 ... 7"),
    ({"alibi_slopes": np.full(14, 1e300)}, ValueError, "alibi_slopes ... float32"),
    ({"sinks": np.ones((2, 14))}, ValueError, "sinks ... 14 ... 2"),
    ({"sinks": np.full(14, np.nan)}, ValueError, "sinks ... nan"),
    ({"out": normal(2, 14, 5, 31)}, ValueError, "out ... 31 ... 32"),
    ({"query": normal(2, 14, 5, 64, dtype=np.float64)}, TypeError, "query ... float64 ... float32"),
    (
        {"key": normal(2, 7, 11, 64, dtype=np.float16)},
        TypeError,
        "query ... key ... one type ... float32 ... float16",
    ),
    ({"query": [[1.0]]}, TypeError, "query ... CUDA device ... list"),
    ({"mask": np.ones((5, 11))}, TypeError, "mask ... float64 ... float32"),
    ({"mask": (1, 2, 3)}, TypeError, "mask ... CUDA device ... tuple"),
    ({"scale": np.ones(14)}, TypeError, "scale ... one number ... GPU"),
    ({"distance_bias": np.ones((14, 3))}, TypeError, "distance_bias ... leave it out"),
    ({"mask": regard.masks.Ranges(0, np.full(5, 9))}, TypeError, "mask ... to_dense"),
    ({"out": normal(2, 14, 5, 32, dtype=np.float16)}, TypeError, "out ... float32 ... float16"),
    ({"out": None, "return_weights": True}, TypeError, "return_weights ... leave it out"),
    ({"color": 1}, TypeError, "color ... is_causal"),
]


@each(REFUSED)
def test_calls_that_are_refused(wrong, error, parts, call):
    with pytest.raises(error, match=says(*parts.split(" ... "))):
        call(**wrong)


def test_arrays_of_numpy_beside_those_of_a_device(call, cuda):
    host = normal(2, 7, 11, 64)
    query, key = cuda.to_device(normal(2, 14, 5, 64)), cuda.to_device(host)
    for function in (cuda.scaled_dot_product_attention, regard.scaled_dot_product_attention):
        with pytest.raises(TypeError, match=says("key", "NumPy", "regard.cuda.to_device")):
            function(query, host, key)
        with pytest.raises(TypeError, match=says("mask", "NumPy")):
            function(query, key, key, np.ones((5, 11), bool))


TOP = [
    ({"precision": "int8"}, TypeError, "precision ... leave it out"),
    ({"threads": 2}, TypeError, "threads ... leave it out"),
    ({"device": "cpu"}, ValueError, "device ... cpu ... host"),
    ({"device": "gpu"}, ValueError, "device ... cuda ... gpu"),
    ({"color": 1}, TypeError, "color ... is_causal"),
]


@each(TOP)
def test_the_top_level_call_refuses_what_a_gpu_cannot_do(wrong, error, parts, call):
    with pytest.raises(error, match=says(*parts.split(" ... "))):
        call(regard.scaled_dot_product_attention, **wrong)


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
    query, key, out = (DLPackArray(room, (2, 4, 8), None, np.float32) for _ in range(3))
    with pytest.raises(ValueError, match=says("out", "overlap", "query")):
        cuda.scaled_dot_product_attention(query, key, key, out=out)


def test_output_between_the_rows_of_an_input(cuda):
    """Queries and outputs may be columns of the same rows."""
    rows = normal(2, 4, 16)
    room = cuda.to_device(rows)
    query = DLPackArray(room, (2, 4, 8), (64, 16, 1), np.float32)

    out = DLPackArray(room, (2, 4, 8), (64, 16, 1), np.float32, byte_offset=8 * 4)
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


NUMBERS_ON_A_DEVICE = [
    ({"key_lengths": np.ones(2, np.int64)}, TypeError, "key_lengths ... int32 ... int64"),
    ({"key_lengths": np.ones(1, np.int32)}, ValueError, "key_lengths ... (2,) ... (1,)"),
    ({"query_offset": np.ones((), np.int32)}, ValueError, "query_offset ... (2,) ... ()"),
    ({"alibi_slopes": np.ones(13, np.float32)}, ValueError, "alibi_slopes ... 14 ... 13"),
]


@each(NUMBERS_ON_A_DEVICE)
def test_numbers_on_a_device_that_are_refused(wrong, error, parts, call, cuda):
    on_device = {option: cuda.to_device(array) for option, array in wrong.items()}
    with pytest.raises(error, match=says(*parts.split(" ... "))):
        call(**on_device)


STARTS = [
    (([1, 9], [0, 9]), ValueError, "query_starts ... 0 ... 1"),
    (([0, 9], [0, 8]), ValueError, "key_starts ... 9 ... 8"),
    (([0, 5, 3, 9], [0, 3, 6, 9]), ValueError, "query_starts ... decrease ... 3 ... 5"),
    (([0, 5, 9], [0, 9]), ValueError, "query_starts ... key_starts ... 3 ... 2"),
    (([], [0, 9]), ValueError, "query_starts ... sequences + 1"),
    (([0.0, 9.0], [0, 9]), TypeError, "query_starts ... float64"),
]


@each(STARTS)
def test_starts_that_are_refused(wrong, error, parts, cuda):
    x = cuda.to_device(normal(9, 2, 8))
    call = cuda.scaled_dot_product_attention_ragged
    with pytest.raises(error, match=says(*parts.split(" ... "))):
        call(x, x, x, *wrong)


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
