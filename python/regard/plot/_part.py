"""The queries and keys that a picture shows, and the blocks of weights that are its pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from regard._arguments.arrays import shown
from regard._arguments.numbers import slice_ends
from regard._show.labels import AxisTokens
from regard._show.weights import edges
from regard._statistics.attention_map import pixels_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# For more pixels, the internal arrays of matplotlib would occupy gigabytes.
_MOST_PIXELS = 1 << 25
_LABELS = {"max": "largest weight", "mean": "mean weight", "sum": "sum of the weights"}


class Part(NamedTuple):
    """The queries and keys to draw, the height and width of the picture, and its labels."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    height: int
    width: int
    offset: int = 0
    """The position of the first of all queries."""
    tokens: AxisTokens = AxisTokens(None, None)
    """The texts of all queries and all keys."""

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.queries[1] - self.queries[0], self.keys[1] - self.keys[0]

    @property
    def is_exact(self) -> bool:
        """Whether each weight has a separate pixel."""
        return (self.height, self.width) == self.lengths

    @property
    def region(self) -> tuple[slice, slice]:
        """The part as the argument `region` of `regard.attention_map`."""
        return slice(*self.queries), slice(*self.keys)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The first query of each pixel, and the end after the last query."""
        return edges(self.lengths[0], self.height, self.queries[0])

    @property
    def columns(self) -> NDArray[np.int64]:
        """The first key of each pixel, and the end after the last key."""
        return edges(self.lengths[1], self.width, self.keys[0])

    def label(self, reduce: str) -> str:
        """Return a description of the color of a pixel."""
        return "weight" if self.is_exact else f"{_LABELS[reduce]} of each {self.block_name}"

    @property
    def block_name(self) -> str:
        """The maximum numbers of queries and keys of a pixel as text."""
        q_len, kv_len = self.lengths
        return f"{-(-q_len // self.height):,} × {-(-kv_len // self.width):,} block"


def part_of(region: Any, sizes: tuple[int, int], heads: int = 1) -> Part:
    """Return the selection of the argument `region`, with a pixel for each weight.

    Raises an error if it is empty.
    """
    if region is None:
        region = (slice(None), slice(None))
    if not isinstance(region, tuple) or len(region) != 2:
        raise TypeError(f"region must be a pair of slices (queries, keys), got {shown(region)}")
    queries, keys = (
        slice_ends("region", part, size) for part, size in zip(region, sizes, strict=True)
    )
    q_len, kv_len = queries[1] - queries[0], keys[1] - keys[0]
    if 0 in (q_len, kv_len, heads):
        raise ValueError(
            f"there is nothing to draw: {q_len} queries and {kv_len} keys"
            + ("" if heads == 1 else f" of {heads} heads")
        )
    return Part(queries, keys, q_len, kv_len)


def in_pixels(part: Part, shape: Any, room: tuple[int, int], heads: int = 1) -> Part:
    """Return the part with the height and width of its picture, from the argument `shape`.

    `room` is the height and width of the picture on the screen, used if `shape` is None.
    """
    if shape is None:
        height, width = _fit(part.lengths, room)
    else:
        height, width = map(min, pixels_of(shape), part.lengths)
    if height * width * heads > _MOST_PIXELS:
        raise ValueError(
            f"shape must give at most {_MOST_PIXELS:,} pixels, got {heads} x {height:,} x "
            f"{width:,}: pass a smaller shape, or draw a region, or fewer heads"
        )
    return part._replace(height=height, width=width)


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
