"""Read the parameters in CTranslate2's ``model.bin``: named arrays, then aliases.

All numbers are little-endian. A text is its length, including a closing zero, and its bytes::

    version u32 | name of the architecture | its revision u32
    number of variables u32, then for each:
        name | axes u8 | each axis u32 | type u8 | bytes u32 | data
    number of aliases u32, then for each: alias | name
"""

import math
import os
import struct

import numpy as np

TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
VERSION = 6


def load_ctranslate2(path):
    """Return the parameters by name, floats as float32, or raise ValueError."""
    with open(path, "rb") as file:
        left = os.path.getsize(path)

        def take(count):
            nonlocal left
            if count > left:
                raise ValueError(f"{path}: {count} bytes are needed, but the file has {left} left")
            left -= count
            return file.read(count)

        def number(code):
            return struct.unpack(f"<{code}", take(struct.calcsize(code)))[0]

        def text():
            return take(number("H")).rstrip(b"\0").decode("utf-8", "replace")

        def variable():
            shape = [number("I") for _ in range(number("B"))]
            kind, size = number("B"), number("I")
            dtype = np.dtype(TYPES[kind]) if kind in TYPES else None
            if dtype is None or size != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"{path}: {size} bytes of type {kind} do not make shape {shape}")
            array = np.frombuffer(take(size), dtype)
            try:
                array = array.reshape(shape)
            except ValueError as error:  # more axes than NumPy allows
                raise ValueError(f"{path}: {error}, for shape {shape}") from None
            return array.astype(np.float32) if dtype.kind == "f" else array

        version = number("I")
        if version != VERSION:
            raise ValueError(f"{path}: must have CTranslate2's version {VERSION}, got {version}")
        text(), number("I")
        parameters = {text(): variable() for _ in range(number("I"))}
        for _ in range(number("I")):
            alias, name = text(), text()
            if name not in parameters:
                raise ValueError(f"{path}: {alias!r} refers to {name!r}, which is missing")
            parameters[alias] = parameters[name]
        if left:
            raise ValueError(f"{path}: {left} bytes follow the last alias")
        return parameters
