"""Read the requested tensors, and skip tensors that cannot be read."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from regard._arguments.numbers import listed
from regard._weights.narrow import narrow_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from regard._weights.narrow import Weight
    from regard.checkpoints._bounded_file import BoundedFile


class UnreadableTensorError(Exception):
    """A tensor has an unsupported type, but the rest of the file can be read."""


def read_tensors(
    file: BoundedFile,
    names: Iterable[str],
    prefix: str,
    read: Callable[[str], Weight],
    stacklevel: int = 3,
) -> dict[str, Any]:
    """Return the tensors whose names begin with `prefix`.

    One warning, attributed to the caller's caller or as `stacklevel` specifies, names the tensors
    for which `read` raises `UnreadableTensorError`. Raises ValueError if no name begins with
    `prefix`, or if no tensor with the prefix can be read.
    """
    wanted = [name for name in names if name.startswith(prefix)]
    if prefix and not wanted:
        file.refuse(f"the file has no parameter whose name begins with {prefix!r}")
    parameters, reasons = {}, []
    for name in wanted:
        try:
            parameters[name] = read(name)
        except UnreadableTensorError as error:
            reasons.append(f"tensor {name!r} {error}")
    if reasons and not parameters:
        file.refuse(listed(reasons))
    if reasons:
        warnings.warn(f"{file.path}: skipped {listed(reasons)}", UserWarning, stacklevel=stacklevel)
    return parameters


def stored_tensor(
    file: BoundedFile,
    name: str,
    shape: tuple[int, ...],
    weight_dtype: str | None,
    read: Callable[[slice], NDArray[Any]],
) -> Weight:
    """Return a float tensor whose rows ``(rows, columns)`` `read` returns as floats.

    A matrix is read a few rows at a time if it is to be stored as `weight_dtype`.
    """
    if weight_dtype is not None and len(shape) == 2:
        return narrow_weight(f"{file.path}: tensor {name!r}", shape, weight_dtype, read)
    return read(slice(0, math.prod(shape[:-1]))).reshape(shape)
