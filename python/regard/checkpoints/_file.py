"""Files of parameters, which are read one at a time."""

from __future__ import annotations

import json
import math
import os
import stat
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import dtype_of, shown
from regard._arguments.numbers import listed
from regard._runtime.public import needed
from regard._weights.quantized import empty_weight, fill, row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from regard._weights.quantized import Weight


_WEIGHT_DTYPES = ("float16", "bfloat16", "int8")


class UnreadableTensorError(Exception):
    """A tensor has an unsupported type, but the rest of the file can be read."""


class Tensor(NamedTuple):
    """The place of a tensor in a file."""

    kind: str  # the name of its type in the format
    shape: tuple[int, ...]
    offset: int  # in bytes
    is_float: bool  # whether it can be stored in fewer bits


class ParameterFile:
    """A file whose header is read once, however often parameters are read."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]

    def __init__(self, name: str) -> None:
        mode = os.stat(name).st_mode
        # Opening a pipe would wait for the other end, and a device has no size.
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ValueError(f"{name}: is not a plain file, but a device, a pipe or a socket")
        with open(name, "rb"):  # the packages' errors for such files do not name them
            pass
        self.name = name

    def rows(self, tensor: str, part: slice) -> NDArray[Any]:
        """Return rows of a tensor ``(rows, columns)`` in a new array, in at least 32 bits."""
        raise NotImplementedError

    def numbers(self, tensor: str, begin: int, dtype: Any, count: int) -> NDArray[Any]:
        """Read `count` numbers of a tensor from byte `begin` of the file on."""
        array = np.fromfile(self.name, dtype, count, offset=begin)
        if array.size != count:
            raise ValueError(f"{self.name}: the file became shorter while {tensor} was read")
        return array

    def read(self, tensor: str, weight_dtype: str | None) -> Weight:
        """Return a tensor. A matrix of floats is read a few rows at a time as `weight_dtype`."""
        _, shape, _, is_float = self.tensors[tensor]
        try:
            np.broadcast_to(0, shape)
        except ValueError as error:  # more axes than NumPy supports
            raise ValueError(
                f"{self.name}: tensor {tensor!r} has the impossible shape {list(shape)}: {error}"
            ) from None
        if weight_dtype is not None and len(shape) == 2 and is_float:
            where = f"{self.name}: tensor {tensor!r}"
            return narrow_weight(where, shape, weight_dtype, lambda part: self.rows(tensor, part))
        return self.rows(tensor, slice(0, math.prod(shape[:-1]))).reshape(shape)

    def parameters(self, prefix: str, weight_dtype: str | None) -> dict[str, Any]:
        """Return the parameters whose names begin with a prefix.

        One warning names the tensors of unsupported types. Raises ValueError if no name begins with
        `prefix`, or if no tensor with it can be read.
        """
        wanted = [name for name in self.tensors if name.startswith(prefix)]
        if prefix and not wanted:
            raise ValueError(
                f"{self.name}: the file has no parameter whose name begins with {prefix!r}"
            )
        parameters, reasons = {}, []
        for name in wanted:
            try:
                parameters[name] = self.read(name, weight_dtype)
            except UnreadableTensorError as error:
                reasons.append(f"tensor {name!r} {error}")
        if reasons and not parameters:
            raise ValueError(f"{self.name}: {listed(reasons)}")
        if reasons:
            warnings.warn(f"{self.name}: skipped {listed(reasons)}", UserWarning, stacklevel=3)
        return parameters


def json_object(name: str) -> dict[str, Any]:
    """Return the content of a JSON file, or raise OSError or ValueError."""
    with open(name, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except (RecursionError, ValueError) as error:
            raise ValueError(f"{name} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not a JSON object, but a {type(content).__name__}")
    return content


def weight_dtype_name(weight_dtype: Any) -> str | None:
    """Return the name of a storage type of weights, or raise TypeError or ValueError."""
    if weight_dtype is None:
        return None
    # NumPy knows the name bfloat16 from the import of ml_dtypes.
    name = weight_dtype
    if not isinstance(name, str):
        name = dtype_of("weight_dtype", weight_dtype, f"None or one of {_WEIGHT_DTYPES}").name
    if name not in _WEIGHT_DTYPES:
        raise ValueError(f"weight_dtype must be None or one of {_WEIGHT_DTYPES}, got {shown(name)}")
    if name == "bfloat16":
        needed("ml_dtypes", "weight_dtype='bfloat16'", "models")
    return name


def narrow_weight(
    name: str, shape: tuple[int, ...], weight_dtype: str, read: Callable[[slice], NDArray[Any]]
) -> Weight:
    """Return a matrix in 16 or 8 bits, whose rows `read` returns a few at a time."""
    if weight_dtype == "int8":
        weight = empty_weight(shape)
        for rows in row_blocks(shape):
            values = read(rows)
            try:
                fill(weight, rows, values)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return weight
    array = np.empty(shape, weight_dtype)
    for rows in row_blocks(shape):
        values = read(rows)
        with np.errstate(over="ignore", invalid="ignore"):
            array[rows] = values
        became_infinite = np.isinf(array[rows].astype(np.float32)) & np.isfinite(values)
        if became_infinite.any():
            raise ValueError(
                f"{name}: a weight is too large to be kept as {weight_dtype}, "
                f"got {values[became_infinite][0]}"
            )
    return array
