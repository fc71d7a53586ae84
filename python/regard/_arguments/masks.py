"""Convert the masks of callers, and distinguish their two kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.arrays import as_array, as_native, part_at
from regard._arguments.foreign import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from regard._arguments.arrays import Place

_ADDED_TYPES = ("float32", "float64", "float16", "bfloat16")


def is_sparse(part: Any) -> bool:
    """Return whether a mask is a `regard.masks.SparseMask`."""
    return hasattr(type(part), "_sparse_rows")


def _is_bool(part: Any) -> bool:
    return bool(part.dtype == np.bool_)


def _dtype(part: Any) -> Any:
    return part.dtype


class Masks:
    """The masks of a call by kind, as arrays of any library.

    Attributes
    ----------
    shown : array, SparseMask or None
        The bool mask: True if a query may attend to a key. None shows everything.
    bias : array or None
        The float mask, which is added to the scores; -inf hides a key. None adds nothing.
    """

    __slots__ = ("bias", "shown")

    def __init__(self, shown: Any = None, bias: Any = None) -> None:
        self.shown, self.bias = shown, bias

    @classmethod
    def of(cls, mask: Any) -> Masks:
        """Convert the argument `mask` to arrays that the kernels read, or raise TypeError."""
        return cls.of_parts([as_mask(part) for part in parts_of(mask)])

    @classmethod
    def of_parts(
        cls,
        parts: Sequence[Any],
        is_bool: Callable[[Any], bool] = _is_bool,
        element_of: Callable[[Any], Any] = _dtype,
    ) -> Masks:
        """Assign one valid array, or both valid arrays of a pair, to their kinds.

        Raises TypeError if a pair is not (bool, float). `is_bool` and `element_of` read the type of
        an array that has no NumPy dtype.
        """
        if not parts:
            return cls()
        if len(parts) == 1:
            return cls(parts[0], None) if is_bool(parts[0]) else cls(None, parts[0])
        first, second = parts
        is_pair = first is not None and second is not None
        if not is_pair or not is_bool(first) or is_bool(second):
            elements = [None if part is None else element_of(part) for part in parts]
            advice = ""
            if is_pair and is_bool(first):
                advice = ": combine the two with &"
            elif is_pair and is_bool(second):
                advice = ": the bool mask comes first"
            raise TypeError(
                "mask must be a bool array, a float array or a pair (bool, float) of both, got a "
                f"pair ({elements[0]}, {elements[1]}){advice}"
            )
        return cls(first, second)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The masks that are not None."""
        return tuple(part for part in (self.shown, self.bias) if part is not None)

    @property
    def argument(self) -> Any:
        """The masks as the argument `mask` of a call: None, an array, or a pair."""
        if self.shown is None:
            return self.bias
        return self.shown if self.bias is None else (self.shown, self.bias)

    def map(self, function: Callable[[Any], Any]) -> Masks:
        """Apply a function to the masks that are not None."""
        return Masks(
            None if self.shown is None else function(self.shown),
            None if self.bias is None else function(self.bias),
        )

    def at(self, place: Place) -> Masks:
        """Return views of the masks of a part of the scores: an index or a slice for each axis."""
        return self.map(
            lambda part: _part_of_sparse(part, place) if is_sparse(part) else part_at(part, place)
        )

    def visible(self, rows: slice, keys: slice) -> NDArray[np.bool_] | None:
        """Return which of some keys are visible to some queries, or None if all are.

        The masks belong to one head: they have the shape (q_len, kv_len), or broadcast to it.
        """
        seen: NDArray[np.bool_] | None = None
        for part in self.at((rows, keys)).arrays:
            if is_sparse(part):
                shows = _dense(part, keys.stop - keys.start)
            else:
                shows = part if part.dtype == np.bool_ else part != -np.inf
            seen = shows if seen is None else seen & shows
        return seen


def _part_of_sparse(mask: Any, place: Place) -> Any:
    """Return a view of a sparse mask, whose missing keys are hidden and do not broadcast."""
    *planes, queries, keys = place[max(len(place) - mask.ndim, 0) :]
    sizes = mask.shape[mask.ndim - 2 - len(planes) :]
    index = [
        (slice(None) if isinstance(at, slice) else 0) if size == 1 else at
        for at, size in zip((*planes, queries), sizes, strict=False)
    ]
    return mask[(..., *index, keys)]


def _dense(mask: Any, kv_len: int) -> NDArray[np.bool_]:
    """Return a sparse mask as an array with all keys."""
    dense = mask.to_dense(max_bytes=2**62)
    missing = kv_len - dense.shape[-1]
    return np.pad(dense, [(0, 0)] * (dense.ndim - 1) + [(0, missing)]) if missing else dense


def parts_of(mask: Any) -> tuple[Any, ...]:
    """Return both masks of a pair, a single mask, or nothing for None."""
    if mask is None:
        return ()
    return mask if is_pair(mask) else (mask,)


def is_pair(mask: Any) -> bool:
    """Return whether `mask` is a pair: a tuple of two arrays, which are not read.

    Two sequences are a pair if they have different kinds or shapes. Otherwise they are the rows of
    one array.
    """
    if not isinstance(mask, tuple) or len(mask) != 2:
        return False
    if any(map(is_sparse, mask)) or all(
        hasattr(part, "dtype") and hasattr(part, "shape") for part in mask
    ):
        return True
    first, second = (np.asarray(readable("mask", part)) for part in mask)
    return (first.shape, first.dtype.kind == "b") != (second.shape, second.dtype.kind == "b")


def as_mask(mask: Any) -> Any:
    """Return one mask as a bool or float array that the kernels read, or raise TypeError.

    None and sparse masks are returned unchanged.
    """
    if mask is None or is_sparse(mask):
        return mask
    if is_pair(mask):
        raise TypeError("mask must be one array here, got a pair: merge the two with np.where")
    rows = mask if isinstance(mask, list | tuple) else ()
    if any(map(is_sparse, rows)):
        raise TypeError(
            f"mask must be one mask or a pair (bool, float), got a {type(mask).__name__} of sparse "
            "masks: regard.masks.stack makes one of them"
        )
    if len({each.dtype == np.bool_ for each in rows if hasattr(each, "dtype")}) == 2:
        raise TypeError(
            f"mask must be one array or a pair (bool, float), got a {type(mask).__name__} of "
            "arrays of both types: pass a tuple of two"
        )
    array = as_array("mask", mask)
    if array.dtype.kind == "b":
        return as_native(array, np.dtype(np.bool_))
    if array.dtype.name in _ADDED_TYPES:
        return as_native(array, array.dtype.newbyteorder("="))
    if array.dtype.kind in "iu":
        raise TypeError(
            f"mask must be bool (True = may attend) or float (added to the scores), got "
            f"{array.dtype}; use mask.astype(bool) if 1 means may attend, or "
            f"mask.astype(float) if it is to be added"
        )
    raise TypeError(
        f"mask must be an array of bool (True = may attend) or of float (added to the scores), "
        f"got {array.dtype}"
    )


class SeenKeys:
    """The keys that any query of a sparse mask sees.

    If a query sees one key of a partial block, all keys of the block count as seen.

    Attributes
    ----------
    first, end : int
        The first of these keys, and the end after the last one. Both are 0 if there is none.
    """

    __slots__ = ("_begins", "_ends", "end", "first")

    def __init__(self, mask: Any) -> None:
        begins, ends = mask._sparse_rows().stored_keys()
        order = np.argsort(begins, kind="stable")
        self._begins, self._ends = begins[order], np.maximum.accumulate(ends[order])
        self.first, self.end = int(self._begins[:1].sum()), int(self._ends[-1:].sum())

    @classmethod
    def of(cls, masks: Masks) -> SeenKeys | None:
        """Return the keys that a sparse mask shows, or None if the bool mask is not sparse."""
        return cls(masks.shown) if is_sparse(masks.shown) else None

    def any(self, start: int, stop: int) -> bool:
        """Return whether a query sees one of the keys from `start` to before `stop`."""
        before = int(np.searchsorted(self._begins, stop))
        return before > 0 and bool(self._ends[before - 1] > start)
