"""Arrays of other libraries, for tests of their protocols. A DeviceArray provides the memory."""

import ctypes
import types

import numpy as np

DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class InterfaceArray:
    """An array that has only __cuda_array_interface__, with the given changes."""

    def __init__(self, array, **changes):
        self.array = array
        interface = dict(array.__cuda_array_interface__)
        for name, value in changes.items():
            if value is LEFT_OUT:
                del interface[name]
            else:
                interface[name] = value
        self.__cuda_array_interface__ = interface


LEFT_OUT = object()


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def read_capsule(capsule, is_versioned):
    """Return the structure that a capsule holds."""
    kind, name = (
        (ManagedVersioned, b"dltensor_versioned") if is_versioned else (Managed, b"dltensor")
    )
    return kind.from_address(_capsule_pointer(capsule, name))


class DLPackArray:
    """An array that has only DLPack. `asked` lists the requested streams, `deleted` counts the
    tensors that were given back."""

    def __init__(
        self,
        array,
        shape=None,
        strides=None,
        dtype=None,
        device=(2, 0),
        reported=None,
        version=(1, 0),
        flags=0,
        byte_offset=0,
        lanes=1,
        name=None,
    ):
        self.array, self.place, self.version, self.flags = array, device, version, flags
        self.reported = device if reported is None else reported
        self.shape = array.shape if shape is None else shape
        self.strides, self.byte_offset, self.name = strides, byte_offset, name
        kind = np.dtype(array.dtype if dtype is None else dtype)
        code = 4 if kind.name == "bfloat16" else DLPACK_CODES[kind.kind]
        self.dtype = code, kind.itemsize * 8, lanes
        self.asked, self.deleted, self._alive = [], 0, []

    def __dlpack_device__(self):
        return self.reported

    def _tensor(self):
        axes = len(self.shape)
        shape = (ctypes.c_int64 * axes)(*self.shape)
        strides = None if self.strides is None else (ctypes.c_int64 * axes)(*self.strides)
        self._alive += [shape, strides]
        return DLTensor(
            self.array.buffer.address,
            DLDevice(*self.place),
            axes,
            DLDataType(*self.dtype),
            shape,
            strides,
            self.byte_offset,
        )

    def _capsule(self, stream, max_version):
        self.asked.append(stream)

        def delete(_):
            self.deleted += 1

        deleter = DELETER(delete)
        if max_version is None:
            managed, name = Managed(self._tensor(), None, deleter), b"dltensor"
        else:
            managed = ManagedVersioned(*self.version, None, deleter, self.flags, self._tensor())
            name = b"dltensor_versioned"
        self._alive += [managed, deleter, self.name]
        return _new_capsule(ctypes.addressof(managed), self.name or name, None)

    def __dlpack__(self, *, stream=None, max_version=None):
        return self._capsule(stream, max_version)


class OldDLPackArray(DLPackArray):
    """An array from before DLPack 1.0: there is no `max_version`."""

    def __dlpack__(self, *, stream=None):
        return self._capsule(stream, None)


def fake_torch(cuda):
    """Return a module with as much of PyTorch as regard calls, whose tensors are DeviceArrays.

    `torch.current` is the number of its current stream.
    """
    torch = types.ModuleType("torch")
    torch.current, torch.recorded = 0, []

    class Stream:
        def __init__(self, number, device=None):
            self.cuda_stream = number

        def __enter__(self):
            self.before, torch.current = torch.current, self.cuda_stream

        def __exit__(self, *_):
            torch.current = self.before

    class Tensor(DLPackArray):
        device, requires_grad = "cuda:0", False

        def data_ptr(self):
            return self.array.buffer.address

        def record_stream(self, stream):
            torch.recorded.append((self, stream.cuda_stream))

    Tensor.__module__ = "torch"

    def empty(shape, dtype, device):
        assert device == "cuda:0"
        return Tensor(cuda.to_device(np.full(shape, 7, dtype), stream=torch.current))

    torch.Tensor, torch.empty = Tensor, empty
    torch.float16, torch.float32 = np.float16, np.float32
    torch.cuda = types.SimpleNamespace(
        current_stream=lambda device: Stream(torch.current),
        default_stream=lambda device: Stream(0),
        ExternalStream=Stream,
        stream=lambda stream: stream,
    )
    return torch
