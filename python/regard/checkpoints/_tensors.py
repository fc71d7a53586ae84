"""Read the tensors that a caller asks for, and skip those that cannot be read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from regard._arguments import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from regard.checkpoints._bounded_file import BoundedFile


class UnreadableTensorError(Exception):
    """A tensor whose type cannot be read; the rest of its file can."""


def read_tensors(
    file: BoundedFile, names: Iterable[str], prefix: str, read: Callable[[str], NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the tensors whose names begin with `prefix`.

    Those for which `read` raises `UnreadableTensorError` are named in one warning, which appears to
    come from the caller's caller. Raises ValueError if no name begins with `prefix`, or no such
    tensor can be read.
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
        warnings.warn(f"{file.path}: skipped {listed(reasons)}", UserWarning, stacklevel=3)
    return parameters
