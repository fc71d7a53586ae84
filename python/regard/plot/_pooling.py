"""Blocks of weights that are pixels of a picture, and the meaning of their color."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard._arguments.arrays import shown
from regard._arguments.numbers import choice, count, slice_ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

POOLINGS = ("max", "mean", "sum")
# For more pixels, the internal arrays of matplotlib would occupy gigabytes.
_MOST_PIXELS = 1 << 25
_LABELS = {"max": "largest weight", "mean": "mean weight", "sum": "sum of the weights"}


class Part(NamedTuple):
    """The queries and keys to draw, and the height and width of the picture."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    height: int
    width: int

    @property
    def block(self) -> tuple[int, int]:
        """The maximum number of queries and keys in a pixel."""
        q_len, kv_len = (end - first for first, end in (self.queries, self.keys))
        return -(-q_len // self.height), -(-kv_len // self.width)

    @property
    def is_exact(self) -> bool:
        """Whether each weight has a separate pixel."""
        return self.block == (1, 1)

    @property
    def region(self) -> tuple[slice, slice]:
        """The part as the argument `region` of `regard.attention_map`."""
        return slice(*self.queries), slice(*self.keys)

    def label(self, reduce: str) -> str:
        """Return a description of the color of a pixel."""
        return "weight" if self.is_exact else f"{_LABELS[reduce]} of each {self.block_name}"

    @property
    def block_name(self) -> str:
        """Return the size of the blocks as text."""
        return "{:,} × {:,} block".format(*self.block)


def check_reduce(reduce: str) -> None:
    """Raise ValueError unless `reduce` is a supported reduction."""
    choice("reduce", reduce, tuple(POOLINGS))


class Cut(NamedTuple):
    """The queries and keys to draw, out of all queries and keys."""

    queries: tuple[int, int]
    keys: tuple[int, int]

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.queries[1] - self.queries[0], self.keys[1] - self.keys[0]


def cut_of(region: Any, sizes: tuple[int, int], heads: int = 1) -> Cut:
    """Return the selection of the argument `region`, or raise an error if it is empty."""
    if region is None:
        region = (slice(None), slice(None))
    if not isinstance(region, tuple) or len(region) != 2:
        raise TypeError(f"region must be a pair of slices (queries, keys), got {shown(region)}")
    queries, keys = (
        slice_ends("region", part, size) for part, size in zip(region, sizes, strict=True)
    )
    cut = Cut(queries, keys)
    if 0 in cut.lengths or not heads:
        raise ValueError(
            "there is nothing to draw: {} queries and {} keys".format(*cut.lengths)
            + ("" if heads == 1 else f" of {heads} heads")
        )
    return cut


def part_of(cut: Cut, shape: Any, room: tuple[int, int], heads: int = 1) -> Part:
    """Return the cut with the height and width of its picture, from the argument `shape`.

    `room` is the height and width of the picture on the screen, used if `shape` is None.
    """
    height, width = _fit(cut.lengths, room) if shape is None else _given(shape, cut.lengths)
    if height * width * heads > _MOST_PIXELS:
        raise ValueError(
            f"shape must give at most {_MOST_PIXELS:,} pixels, got {heads} x {height:,} x "
            f"{width:,}: pass a smaller shape, or draw a region, or fewer heads"
        )
    return Part(cut.queries, cut.keys, height, width)


def has_square_entries(lengths: tuple[int, int]) -> bool:
    """Return whether a picture is drawn to scale; a very long one would be a thin line."""
    return max(lengths) <= 4 * min(lengths)


def _fit(lengths: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width for the smallest blocks whose pixels fit on the screen."""
    blocks = [-(-length // pixels) for length, pixels in zip(lengths, room, strict=True)]
    if has_square_entries(lengths):
        blocks = [max(blocks)] * 2
    height, width = (-(-length // block) for length, block in zip(lengths, blocks, strict=True))
    return height, width


def _given(shape: Any, lengths: tuple[int, int]) -> tuple[int, int]:
    try:
        height, width = shape
    except (TypeError, ValueError):
        raise TypeError(f"shape must be a pair (height, width), got {shown(shape)}") from None
    return (
        min(count("shape", height, minimum=1), lengths[0]),
        min(count("shape", width, minimum=1), lengths[1]),
    )


def pooled(weights: Array, part: Part, reduce: str) -> Array:
    """Return pictures of weights (..., q_len, kv_len), as `regard.attention_map` does."""
    shown = weights[..., *part.region]
    if part.is_exact:
        return shown
    rows = starts(part.queries, part.height) - part.queries[0]
    columns = starts(part.keys, part.width) - part.keys[0]
    if reduce == "max":
        return np.maximum.reduceat(np.maximum.reduceat(shown, rows, axis=-2), columns, axis=-1)
    sums = np.add.reduceat(shown, columns, axis=-1, dtype=np.float64)
    sums = np.add.reduceat(sums, rows, axis=-2)
    return sums if reduce == "sum" else sums / areas(part)


def areas(part: Part) -> Array:
    """Return the number of weights in each pixel."""
    heights = np.diff(starts(part.queries, part.height), append=part.queries[1])
    widths = np.diff(starts(part.keys, part.width), append=part.keys[1])
    return heights[:, None] * widths


def starts(interval: tuple[int, int], pixels: int) -> NDArray[np.int64]:
    """Return the first indices of the blocks of an interval."""
    first, end = interval
    return first + np.arange(pixels, dtype=np.int64) * (end - first) // pixels
