"""Build GGUF files byte by byte: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

import struct

import numpy as np

MAGIC = b"GGUF"
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
F32, F16, Q8_0 = 0, 1, 8


def u32(*numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def u64(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def text(string):
    data = string if isinstance(string, bytes) else string.encode()
    return u64(len(data)) + data


def entry(key, kind, value):
    """Return a metadata entry; `value` is bytes already."""
    return text(key) + u32(kind) + value


def tensor(name="a", shape=(2, 3), kind=F32, offset=0):
    """Return a tensor's entry; `shape` is in NumPy's order."""
    return text(name) + u32(len(shape)) + u64(*shape[::-1]) + u32(kind) + u64(offset)


NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)
DATA = NUMBERS.tobytes()
TENSORS = (tensor(),)
ENTRIES = (entry("size", UINT32, u32(7)), entry("name", STRING, text("tiny")))


def gguf_file(
    *,
    magic=MAGIC,
    version=3,
    entries=ENTRIES,
    entry_count=None,
    tensors=TENSORS,
    tensor_count=None,
    data=DATA,
):
    """Return a file, with the true counts unless others are given."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(entries) if entry_count is None else entry_count,
    )
    header = magic + u32(version) + u64(*counts) + b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data
