"""Read the header of a GGUF file: the metadata, and the location of each tensor."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from regard.checkpoints._bounded_file import BoundedFile

VERSIONS = (2, 3)
# Value types by number: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9
DTYPES = {BOOL: np.dtype(np.uint8)} | {kind: np.dtype(f"<{c}") for kind, c in NUMBERS.items()}
LEAST_BYTES = {kind: dtype.itemsize for kind, dtype in DTYPES.items()} | {STRING: 8, ARRAY: 12}
_ARRAY_START = struct.Struct("<IQ")  # the type and the number of the items
DEEPEST_ARRAY = 8
MOST_AXES = 4
DEFAULT_ALIGNMENT = 32


class TensorInfo(NamedTuple):
    """The header entry of a tensor: shape in NumPy order, `offset` from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


class Header(NamedTuple):
    """The content of the header, and the start of the data."""

    metadata: dict[str, Any]
    tensors: list[TensorInfo]
    data: int
    alignment: int


def read_header(file: BoundedFile) -> Header:
    """Read a GGUF header, or raise a ValueError that names the reason."""
    if file.size < 4 or file.take(4, "the magic number") != b"GGUF":
        file.refuse("the file is not a GGUF file, which begins with the letters GGUF")
    version = file.number("I", "the version")
    if version & 0xFFFF == 0:
        file.refuse("the file is a big-endian GGUF file; only little-endian files can be read")
    if version not in VERSIONS:
        file.refuse(f"the file has GGUF version {version}; only versions 2 and 3 can be read")
    tensor_count = file.number("Q", "the number of tensors")
    entry_count = file.number("Q", "the number of metadata entries")
    metadata: dict[str, Any] = {}
    file.require(entry_count * 13, f"metadata of {entry_count} entries")
    for _ in range(entry_count):
        name = file.text("a metadata key")
        if name in metadata:
            file.refuse(f"the file has the metadata key {name!r} twice")
        metadata[name] = _value(file, file.number("I", f"the type of {name!r}"), name)
    file.require(tensor_count * 24, f"a list of {tensor_count} tensors")
    tensors = [_tensor_info(file) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        file.refuse(f"general.alignment must be a power of two, got {alignment!r}")
    data = -(-file.position // alignment) * alignment
    return Header(metadata, tensors, data, alignment)


def _value(file: BoundedFile, type_number: int, name: str) -> Any:
    if type_number in NUMBERS:
        return file.number(NUMBERS[type_number], f"the value of {name!r}")
    if type_number == BOOL:
        return file.number("B", f"the value of {name!r}") != 0
    if type_number == STRING:
        return file.text(f"the value of {name!r}")
    if type_number != ARRAY:
        file.refuse(f"{name!r} has the unknown value type {type_number}")
    return _array(file, name, f"the array {name!r}", 0)


def _array(file: BoundedFile, name: str, what: str, depth: int) -> list[Any]:
    """Read an array in time proportional to its size in bytes, for any type of items."""
    if depth == DEEPEST_ARRAY:
        file.refuse(f"{name!r} nests arrays more than {DEEPEST_ARRAY} deep")
    item_type, count = _ARRAY_START.unpack(file.take(_ARRAY_START.size, what))
    if count == 0 and item_type in LEAST_BYTES:
        return []
    if item_type in DTYPES:
        dtype = DTYPES[item_type]
        data = file.take(count * dtype.itemsize, f"{name!r} of {count} items")
        numbers = np.frombuffer(data, dtype)
        items: list[Any] = (numbers != 0 if item_type == BOOL else numbers).tolist()
        return items
    if item_type not in LEAST_BYTES:
        file.refuse(f"{name!r} has the unknown item type {item_type}")
    file.require(count * LEAST_BYTES[item_type], f"{name!r} of {count} items")
    if item_type == STRING:
        return [file.text(what) for _ in range(count)]
    return [_array(file, name, what, depth + 1) for _ in range(count)]


def _tensor_info(file: BoundedFile) -> TensorInfo:
    name = file.text("a tensor's name")
    axes = file.number("I", f"the number of axes of {name!r}")
    if axes > MOST_AXES:
        file.refuse(f"tensor {name!r} has {axes} axes; GGUF allows {MOST_AXES}")
    shape = tuple(file.number("Q", f"the shape of {name!r}") for _ in range(axes))[::-1]
    # NumPy counts the bytes of empty arrays as if no axis were empty.
    if math.prod(shape) >= 2**63 or (0 in shape and math.prod(filter(None, shape)) >= 2**60):
        file.refuse(f"tensor {name!r} has the impossible shape {shape}")
    type_number = file.number("I", f"the type of {name!r}")
    return TensorInfo(name, shape, type_number, file.number("Q", f"the offset of {name!r}"))
