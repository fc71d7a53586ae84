"""The positions of a stream, whose number of keys may be unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from regard._arguments.numbers import integers, offsets
from regard._arguments.positions import Positions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray


def positions_of(options: Mapping[str, Any], q_len: int, total: int | None) -> Positions:
    """Check the options that concern positions, and read them.

    Parameters
    ----------
    options : mapping
        The options of the call, of which `window` has been checked.
    q_len : int
        The number of queries.
    total : int or None
        The number of keys, if known.
    """
    lengths = _counts("key_lengths", options.get("key_lengths"), total)
    padding = _counts("left_padding", options.get("left_padding"), total)
    offset = options.get("query_offset", 0)
    if not isinstance(offset, str):
        offset = _as_int64("query_offset", offset)
    elif offset == "end" and lengths is None and total is None:
        raise ValueError(
            "query_offset='end' needs key_lengths here: the number of keys is not known until the "
            "last chunk arrives"
        )
    else:
        end = total if lengths is None else lengths
        offset = offsets(offset, np.asarray(0 if end is None else end) - q_len)
    limits = {"key_lengths": lengths, "left_padding": padding, "query_offset": offset}
    return Positions.of({**options, **limits}, q_len, total)


def check_end(positions: Positions, count: int, total: int) -> None:
    """Raise ValueError if `count` chunks have fewer keys in total than the lengths require."""
    for name, numbers in (("key_lengths", positions.end), ("left_padding", positions.begin)):
        most = 0 if numbers is None else int(numbers.max(initial=0))
        if most > total:
            raise ValueError(
                f"{name} must be from 0 to {total}, the number of keys in the {count} "
                f"chunks received, got {most}"
            )


def _as_int64(name: str, value: ArrayLike) -> NDArray[np.int64]:
    return integers(name, value).astype(np.int64)


def _counts(name: str, value: ArrayLike | None, total: int | None) -> NDArray[np.int64] | None:
    """Return numbers of keys, from 0 to `total` if `total` is known."""
    if value is None:
        return None
    array = _as_int64(name, value)
    least, most = int(array.min(initial=0)), int(array.max(initial=0))
    if least < 0 or (total is not None and most > total):
        wanted = "at least 0" if total is None else f"from 0 to {total}"
        raise ValueError(f"{name} must be {wanted}, got {least if least < 0 else most}")
    return array
