"""The options of a stream that speak of positions, and what they are in one of its chunks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import integers, window_sides
from regard._random.philox import POSITION_PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

_LEAST, _MOST = -(2**63), 2**63 - 1
# No arrays are as long as this: what is further from a chunk is beyond all of its keys.
_FAR = 2**61


class Positions:
    """Which keys of a stream its queries can see, as far as positions tell.

    Parameters
    ----------
    options : mapping
        Those of the call.
    q_len : int
        How many queries there are.
    total : int or None
        How many keys there are, if that is known.
    """

    def __init__(self, options: Mapping[str, Any], q_len: int, total: int | None) -> None:
        self._q_len, self._total = q_len, total
        self._is_causal = bool(options.get("is_causal", False))
        window = options.get("window")
        self._window = (None, None) if window is None else window_sides(window)
        self._origin = options.get("dropout_origin", (0, 0, 0))
        self._lengths = _counts("key_lengths", options.get("key_lengths"), total)
        self._padding = _counts("left_padding", options.get("left_padding"), total)
        self._offsets = self._offsets_of(options.get("query_offset", 0))

    def _offsets_of(self, query_offset: ArrayLike) -> NDArray[np.int64]:
        if not isinstance(query_offset, str):
            return _as_int64("query_offset", query_offset)
        if query_offset != "end":
            raise ValueError(
                "query_offset must be an integer, an array of integers or 'end', got "
                f"{query_offset!r}"
            )
        if self._lengths is not None:
            return self._lengths - self._q_len
        if self._total is None:
            raise ValueError(
                "query_offset='end' needs key_lengths here: how many keys the chunks hold is not "
                "known before the last of them has come"
            )
        return np.asarray(self._total - self._q_len)

    def visible(self) -> tuple[int, float]:
        """Return where the first key that any query can see begins, and where the last one ends.

        The end is infinity where nothing but the number of keys ends what is visible, and both are
        0 where no query can see any key. Options must broadcast against each other.
        """
        # Python's integers, for the sums below may need more than 64 bits.
        offsets, padding = self._offsets.astype(object), np.asarray(0, object)
        ends = np.asarray(math.inf if self._total is None else self._total, object)
        if self._padding is not None:
            padding = self._padding.astype(object)
        if self._lengths is not None:
            ends = np.minimum(ends, self._lengths.astype(object))
        left, right = self._window
        if self._is_causal:
            right = 0
        begins = padding if left is None else np.maximum(padding, offsets - left)
        if right is not None:
            ends = np.minimum(ends, offsets + self._q_len + right)
        begins, ends = np.broadcast_arrays(begins, ends)
        seeing = [(b, e) for b, e in zip(begins.flat, ends.flat, strict=True) if b < e]
        if not seeing or self._q_len == 0:
            return 0, 0
        end = max(e for _, e in seeing)
        return max(0, int(min(b for b, _ in seeing))), end if end == math.inf else int(end)

    def options_of(self, start: int, length: int) -> dict[str, Any]:
        """Return the options for the keys from `start` on, whose first one is then key 0."""
        options: dict[str, Any] = {
            **self._offset_and_window(start),
            "dropout_origin": (
                self._origin[0],
                self._origin[1],
                (int(self._origin[2]) + start) % POSITION_PERIOD,
            ),
        }
        if self._lengths is not None:
            options["key_lengths"] = np.clip(self._lengths - start, 0, length)
        if self._padding is not None:
            options["left_padding"] = np.clip(self._padding - start, 0, length)
        return options

    def _offset_and_window(self, start: int) -> dict[str, Any]:
        """Return what shows the same keys from `start` on, without leaving 64 bits."""
        left, right = self._window
        if right is None or right < 2 * _FAR:
            # The least offset lies so far before all keys that it shows and hides the same ones as
            # any lesser one.
            return {"query_offset": np.maximum(self._offsets, _LEAST + start) - start}
        # Queries far before all keys stay where they are, and their windows become shorter. Other
        # queries see all later keys through the shorter window too.
        offsets = np.where(self._offsets < -_FAR, self._offsets, self._offsets - start)
        return {"query_offset": offsets, "window": (left, right - start)}

    def check_end(self, count: int, total: int) -> None:
        """Raise ValueError if `count` chunks have ended before the keys that lengths speak of."""
        for name, numbers in (("key_lengths", self._lengths), ("left_padding", self._padding)):
            most = 0 if numbers is None else int(numbers.max(initial=0))
            if most > total:
                raise ValueError(
                    f"{name} must be from 0 to {total}, the number of keys in the {count} chunks "
                    f"that came, got {most}"
                )


def _as_int64(name: str, value: ArrayLike) -> NDArray[np.int64]:
    array = integers(name, value)
    if array.dtype.kind == "u" and array.size and int(array.max()) > _MOST:
        raise ValueError(f"{name} must fit in 64 bits, got {array.max()}")
    return array.astype(np.int64)


def _counts(name: str, value: ArrayLike | None, total: int | None) -> NDArray[np.int64] | None:
    """Numbers of keys, from 0 to `total` where that is known."""
    if value is None:
        return None
    array = _as_int64(name, value)
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    if least < 0 or (total is not None and most > total):
        wanted = "at least 0" if total is None else f"from 0 to {total}"
        raise ValueError(f"{name} must be {wanted}, got {least if least < 0 else most}")
    return array
