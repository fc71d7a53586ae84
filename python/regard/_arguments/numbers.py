"""Check the numbers, flags and names that callers pass, and name the wrong argument."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from regard._arguments.arrays import as_array, broadcasts_to, shown
from regard._arguments.hints import column_hint, refuse_grid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

_MOST_NAMES = 20
MOST = 2**63 - 1  # kernels and files count in 64 bits


def repeat(values: NDArray[Any], counts: ArrayLike) -> NDArray[Any]:
    """Repeat values as `numpy.repeat` does, which accepts no 64-bit counts if an index has 32."""
    return np.repeat(values, np.asarray(counts, np.intp))


def integers(
    name: str,
    value: ArrayLike,
    wanted: str = "an int or an integer array",
    *,
    any_size: bool = False,
) -> NDArray[Any]:
    """Return an array of integers, or raise TypeError or ValueError.

    With `any_size`, integers may exceed int64. A Python int is returned as an array of objects.
    """
    if any_size and isinstance(value, int) and not isinstance(value, bool):
        return np.array(value, object)
    array = np.array(None) if value is None else as_array(name, value)
    if array.size == 0 and isinstance(value, list | tuple):
        return array.astype(np.int64)  # an empty list becomes float64
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.max(initial=0) > MOST and not any_size:
            raise ValueError(f"{name} must fit in 64 bits, got {array.max()}")
        return array
    if array.dtype.kind == "O":
        # NumPy has no type for Python integers beyond 64 bits, and keeps them as objects.
        numbers = list(array.flat) if all(type(each) is int for each in array.flat) else []
        beyond = [number for number in numbers if not -(2**63) <= number < 2**63]
        if beyond:
            raise ValueError(f"{name} must fit in 64 bits, got {beyond[0]}")
        if array.ndim == 0:
            raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    raise TypeError(f"{name} must be {wanted}, got {array.dtype}")


def batch_integers(name: str, value: ArrayLike, batch: tuple[int, ...]) -> NDArray[np.int64]:
    """Return integers that broadcast to the batch axes, or raise TypeError or ValueError."""
    numbers = integers(name, value)
    if not broadcasts_to(numbers.shape, batch):
        raise ValueError(
            f"{name} must be an integer or broadcast to the batch axes {batch}, got shape "
            f"{numbers.shape}{column_hint(name, numbers.shape, batch)}"
        )
    return numbers.astype(np.int64)


def offsets(query_offset: ArrayLike, end: ArrayLike, *, any_size: bool = False) -> NDArray[Any]:
    """Return `query_offset` as integers, with "end" replaced by the numbers `end`."""
    if not isinstance(query_offset, str):
        return integers("query_offset", query_offset, any_size=any_size)
    if query_offset != "end":
        raise ValueError(
            f'query_offset must be an int, an integer array or "end", got {query_offset!r}'
        )
    return np.asarray(end)


def count(name: str, value: SupportsIndex, minimum: int = 0, maximum: int | None = None) -> int:
    """Return an int from `minimum` to `maximum`, or raise TypeError or ValueError."""
    # bool has __index__, but a length of True is a mistake.
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {number}")
    return number


def real_number(name: str, value: SupportsFloat) -> float:
    """Return a real number as a float, or raise TypeError.

    An int that is too large for a float becomes infinity.
    """
    is_real = isinstance(value, int | float | np.integer | np.floating) or _is_foreign_real(value)
    if not is_real or isinstance(value, bool):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def finite_number(name: str, value: SupportsFloat, minimum: float | None = None) -> float:
    """Return a finite number that is positive, or at least `minimum` if that is given.

    Raises TypeError or ValueError.
    """
    number = real_number(name, value)
    in_range = number > 0 if minimum is None else number >= minimum
    if not (in_range and math.isfinite(number)):
        wanted = "positive" if minimum is None else f"at least {minimum:g}"
        raise ValueError(f"{name} must be {wanted} and finite, got {number}")
    return number


def _is_foreign_real(value: object) -> bool:
    """Return whether a scalar has a real type that is not built into NumPy, such as bfloat16."""
    if not isinstance(value, np.generic) or value.dtype.isbuiltin != 2:
        return False
    return np.can_cast(value.dtype, np.float64)


def flag(name: str, value: bool) -> bool:
    """Return a bool, or raise TypeError for other values, even truthy values."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)


def choice(name: str, value: Any, choices: tuple[str | None, ...]) -> Any:
    """Return one of some names, or raise ValueError."""
    if (value is None or isinstance(value, str)) and value in choices:
        return value
    *most, last = map(repr, choices)
    raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {shown(value)}")


def text(name: str, value: str) -> str:
    """Return a str, or raise TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def mapping(name: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a mapping, or raise TypeError."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(value).__name__}")
    return value


def window_sides(window: Any) -> tuple[int | None, int | None]:
    """Return the two sides of a window, or raise TypeError or ValueError.

    Any sequence of length 2 is accepted, including lists and arrays, as in the attention calls.
    """
    refuse_grid(window)
    is_sequence = hasattr(window, "__getitem__") and not isinstance(window, str | bytes | dict)
    try:
        sides = len(window) if is_sequence else None
    except TypeError:  # an array without axes
        sides = None
    if sides is None:
        raise TypeError(f"window must be a pair (left, right), got {type(window).__name__}")
    if sides != 2:
        raise ValueError(f"window must be a pair (left, right), got {sides} numbers")
    left, right = (
        None if side is None else count(f"window[{i}]", side) for i, side in enumerate(window)
    )
    return left, right


def slice_ends(
    name: str, part: slice, length: int, wanted: str = "a pair of slices"
) -> tuple[int, int]:
    """Return the begin and end of a slice without a step, or raise TypeError or ValueError."""
    if not isinstance(part, slice):
        raise TypeError(f"{name} must be {wanted}, got {type(part).__name__}")
    try:
        start, stop, step = part.indices(length)
    except TypeError:
        raise TypeError(f"{name} must have slices of ints, got {part}") from None
    if step != 1:
        raise ValueError(f"{name} must have slices without steps, got {part}")
    return start, max(start, stop)


def iterated(name: str, values: Iterable[Any], wanted: str) -> list[Any]:
    """Return the items of an iterable as a list, or raise TypeError."""
    try:
        items = iter(values)
    except TypeError:
        raise TypeError(f"{name} must be {wanted}, got {type(values).__name__}") from None
    return list(items)  # an error of a generator is the caller's


def file_path(path: str | os.PathLike[str]) -> str:
    """Return a path as a str, or raise TypeError or ValueError."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"path must be a str or a path, got {type(path).__name__}") from None
    if not name:
        raise ValueError(f"path must name a file, got an empty {type(path).__name__}")
    if "\0" in name:
        raise ValueError(f"path must have no null characters, got {name!r}")
    return name


def listed(names: Iterable[str]) -> str:
    """Join the first 20 names by commas for a message, and append the number of the others."""
    all_names = list(names)
    shown = ", ".join(all_names[:_MOST_NAMES]) or "none"
    rest = len(all_names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def token_counts(
    starts: ArrayLike, name: str, tokens: int, sequences: int | None = None
) -> NDArray[np.int64]:
    """Return the number of tokens of each packed sequence, or raise TypeError or ValueError.

    `name` is the array with the `tokens`. There are `sequences`, or any number of them.
    """
    wanted = "an integer array of shape " + (
        "(sequences + 1,)" if sequences is None else f"({sequences + 1},), batch + 1"
    )
    numbers = integers("starts", starts, wanted)
    fits = numbers.ndim == 1 and numbers.size > 0
    if not fits or (sequences is not None and len(numbers) != sequences + 1):
        raise ValueError(f"starts must be {wanted}, got shape {numbers.shape}")
    if numbers[0] != 0:
        raise ValueError(f"starts must begin with 0, got {numbers[0]}")
    if numbers[-1] != tokens:
        raise ValueError(
            f"starts must end with the number of tokens in {name}, {tokens}, got {numbers[-1]}"
        )
    numbers = numbers.astype(np.int64)
    counts: NDArray[Any] = numbers[1:] - numbers[:-1]
    if counts.min(initial=0) < 0:
        at = int(np.argmax(counts < 0)) + 1
        raise ValueError(
            f"starts must not decrease, got {numbers[at]} after {numbers[at - 1]} at index {at}"
        )
    return counts
