"""Test arrays of other libraries: what is read from __cuda_array_interface__ and DLPack, what is
refused, and how the library is informed about streams and memory."""

import ctypes
import gc
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import regard
from cuda_arrays import (
    LEFT_OUT,
    DLPackArray,
    InterfaceArray,
    OldDLPackArray,
    fake_torch,
    read_capsule,
)
from messages import says

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 9, 16), np.float32)
WANTED = regard.scaled_dot_product_attention(X, X, X)


def same(result):
    np.testing.assert_allclose(result.to_numpy(), WANTED, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("wrap", [InterfaceArray, DLPackArray, OldDLPackArray])
def test_both_protocols(wrap, cuda):
    array = wrap(cuda.to_device(X))
    for call in (cuda.scaled_dot_product_attention, regard.scaled_dot_product_attention):
        result = call(array, array, array)
        assert isinstance(result, cuda.DeviceArray)
        same(result)


def test_dlpack_gives_its_memory_back_once(cuda):
    """After a call, and after an error."""
    query, key, value = (DLPackArray(cuda.to_device(X)) for _ in range(3))
    same(cuda.scaled_dot_product_attention(query, key, value))
    gc.collect()
    assert [query.deleted, key.deleted, value.deleted] == [1, 1, 1]
    wrong = DLPackArray(cuda.to_device(X[:3]))
    with pytest.raises(ValueError, match="multiple"):
        cuda.scaled_dot_product_attention(query, wrong, wrong)
    gc.collect()
    assert (query.deleted, wrong.deleted) == (2, 2)


class CudaCoreStream:
    def __cuda_stream__(self):
        return 0, 64


# A stream as each library passes it: by CUDA Core's protocol, PyTorch, CuPy, Numba.
STREAMS = [
    *[(None, 1), (0, 1), (1, 1), (2, 2), (np.int64(64), 64), (CudaCoreStream(), 64)],
    (SimpleNamespace(cuda_stream=64), 64),
    (SimpleNamespace(ptr=64), 64),
    (SimpleNamespace(handle=ctypes.c_void_p(64)), 64),
]


@pytest.mark.parametrize(("given", "asked"), STREAMS)
def test_dlpack_is_told_the_stream(given, asked, cuda, machine):
    array = DLPackArray(cuda.to_device(X))
    same(cuda.scaled_dot_product_attention(array, array, array, stream=given))
    assert array.asked == [asked] * 3


def test_the_interface_names_the_stream_that_is_worked_on(cuda, machine):
    """The work runs on the query's stream, which waits for the streams of the others. The emulation
    does only work that some stream waits for."""
    query = InterfaceArray(cuda.to_device(X, stream=64), stream=64)
    other = InterfaceArray(cuda.to_device(X, stream=80), stream=80)
    same(cuda.scaled_dot_product_attention(query, other, other))


@pytest.mark.parametrize("stream", [LEFT_OUT, None], ids=["left out", "None"])
def test_the_interface_without_a_stream(stream, cuda):
    array = InterfaceArray(cuda.to_device(X), stream=stream)
    same(cuda.scaled_dot_product_attention(array, array, array))


INTERFACES = {
    "data is a number": ({"data": 64}, TypeError, "cannot be read"),
    "data of the host": ({"data": (X.ctypes.data, False)}, ValueError, "memory of a CUDA device"),
    "unknown type": ({"typestr": "<q9"}, TypeError, "cannot be read"),
    "mask": ({"mask": object()}, TypeError, "got one with a mask"),
    "byte order": ({"typestr": ">f4"}, TypeError, "byte order"),
    "strides of parts": ({"strides": (4, 4, 2)}, ValueError, "(4, 4, 2)"),
    "stream 0": ({"stream": 0}, ValueError, "stream 0"),
    "columns apart": ({"strides": (288, 32, 8)}, ValueError, "last axis"),
}
TENSORS = {
    "lanes": ({"lanes": 4}, TypeError, "vectors of 4"),
    "version 2": ({"version": (2, 0)}, ValueError, "version"),
    "another name": ({"name": b"tensor"}, ValueError, "capsule"),
    "elsewhere": ({"device": (1, 0), "reported": (2, 0)}, ValueError, "(1, 0)"),
    "on the host": ({"reported": (1, 0)}, TypeError, "CUDA device"),
    "columns apart": ({"strides": (32, 8, 2)}, ValueError, "last axis"),
}
REFUSED = [
    pytest.param(wrap, *row, id=f"{wrap.__name__}, {name}")
    for wrap, table in ((InterfaceArray, INTERFACES), (DLPackArray, TENSORS))
    for name, row in table.items()
]


@pytest.mark.parametrize(("wrap", "changes", "kind", "words"), REFUSED)
def test_arrays_that_are_refused(wrap, changes, kind, words, cuda):
    x = cuda.to_device(X)
    with pytest.raises(kind, match=re.escape(words)):
        cuda.scaled_dot_product_attention(wrap(x, **changes), x, x)


def test_read_only_inputs_and_outputs(cuda):
    x = cuda.to_device(X)
    for out in (
        InterfaceArray(cuda.to_device(X), data=(cuda.to_device(X).buffer.address, True)),
        DLPackArray(cuda.to_device(X), flags=1),
    ):
        with pytest.raises(ValueError, match=says("out", "read-only")):
            cuda.scaled_dot_product_attention(x, x, x, out=out)
    query = DLPackArray(cuda.to_device(X), flags=1)
    same(cuda.scaled_dot_product_attention(query, query, query))


def test_our_own_arrays_speak_dlpack(cuda, machine):
    x = cuda.to_device(X)
    assert x.__dlpack_device__() == (2, 0)
    for is_versioned in (False, True):
        version = {"max_version": (1, 3)} if is_versioned else {}
        capsule = x.__dlpack__(stream=2, **version)
        managed = read_capsule(capsule, is_versioned)
        tensor = managed.tensor
        assert tensor.data == x.buffer.address
        assert (tensor.device.type, tensor.device.id) == (2, 0)
        assert [tensor.shape[i] for i in range(tensor.ndim)] == [4, 9, 16]
        assert [tensor.strides[i] for i in range(tensor.ndim)] == [144, 16, 1]
        assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 32, 1)
        assert not is_versioned or (managed.major, managed.minor) == (1, 0)
        same(
            cuda.scaled_dot_product_attention(
                *(_Again(x.__dlpack__(stream=1, **version)) for _ in range(3))
            )
        )
        del capsule  # unused: it frees what it holds
    bytes_before = machine.device_bytes
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert machine.device_bytes == bytes_before, "the capsule must keep the memory"
    del capsule


class _Again:
    """An object that passes a capsule on."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream):
        return self.capsule


@pytest.mark.parametrize("name", ["bool", "int32", "float16", "float32", "float64"])
def test_our_own_arrays_have_the_interface(name, cuda):
    host = (RANDOM.standard_normal((3, 5)) * 3).astype(name)
    x = cuda.to_device(host)
    interface = x.__cuda_array_interface__
    assert interface["data"] == (x.buffer.address, False)
    assert (interface["shape"], interface["typestr"]) == ((3, 5), host.dtype.str)
    assert (interface["version"], interface["stream"]) == (3, 1)
    assert (x.shape, x.dtype, x.device, x.ndim, len(x)) == ((3, 5), host.dtype, 0, 2, 3)
    assert x.to_numpy().tobytes() == host.tobytes()


def test_bfloat16_has_no_interface(cuda):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    host = X.astype(bfloat16)
    x = cuda.to_device(host)
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.to_numpy().tobytes() == host.tobytes()


@pytest.fixture
def torch(machine, cuda, monkeypatch):
    torch = fake_torch(cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    yield torch
    torch.recorded.clear()  # it keeps tensors for as long as pytest keeps the module


def test_tensors_of_pytorch_give_tensors_on_its_current_stream(torch, cuda, machine):
    tensors = [torch.Tensor(cuda.to_device(X)) for _ in range(3)]
    output, lse = regard.scaled_dot_product_attention(*tensors, return_lse=True)
    assert type(output) is type(lse) is torch.Tensor
    same(output.array)
    assert tensors[0].asked == [1], "PyTorch's default stream, 0, is 1 in the protocols"
    torch.current = 96
    output = cuda.scaled_dot_product_attention(*tensors)
    assert [tensor.asked for tensor in tensors] == [[1, 96]] * 3
    machine.module.synchronize(0, 96)
    same(output.array)
    assert torch.recorded == []


def test_another_stream_than_pytorchs_is_recorded(torch, cuda, machine):
    """Otherwise PyTorch would reuse memory that the other stream still reads."""
    tensors = [torch.Tensor(cuda.to_device(X)) for _ in range(3)]
    output = cuda.scaled_dot_product_attention(*tensors, stream=96)
    machine.module.synchronize(0, 96)
    same(output.array)
    assert [stream for _, stream in torch.recorded] == [96] * 4
    assert {id(tensor) for tensor, _ in torch.recorded} == set(map(id, [*tensors, output]))
    assert torch.current == 0
