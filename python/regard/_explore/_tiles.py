"""Tiles: finer pictures of parts of a head, for a page to show when it is zoomed in.

Level k divides the queries and the keys into 2 ** k parts each, or fewer if a part would have less
than one picture row per query. A tile is the picture of one part: at most 64 x 64 pixels, each a
single weight on the finest level and a block on the others. The available room determines which
tiles are included: half of it is for single weights, and the rest is divided equally among the
levels of blocks. On each level, tiles are ordered by the weight that they hold beyond the top keys
of their queries, because a page shows the top keys without any tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard._explore._encoding import levels, packed, short_halves
from regard._explore._plan import TILE
from regard._show.weights import edges
from regard._statistics.attention_map import pictures_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from regard._arguments.arrays import Array
    from regard._attention.check import CheckedCall
    from regard._explore._encoding import Halves
    from regard._explore._plan import TileLevel
    from regard._statistics.result import TopKeys


# Tiles are ordered on a grid of at most this many rows and columns, whatever the number of tiles.
_FINEST_GRID = 512
_TILES_AT_ONCE = 16
# A tile's element in the page, and its entry in the JSON, without the numbers.
_ELEMENT_BYTES = 110


class Tile(NamedTuple):
    """A packed tile: its queries and keys, and the facts that a reader needs about its arrays."""

    bounds: tuple[int, int, int, int]
    blob: bytes
    facts: list[int]
    """The exponent of single weights, or the height and the width of a picture of blocks."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that the tile adds to a page, which is not exceeded."""
        return len(self.blob) + _ELEMENT_BYTES + len(str([*self.bounds, *self.facts]))


def tiles_of(
    call: CheckedCall, lse: Array, mean: Array, top: TopKeys, plan: list[TileLevel], room: float
) -> list[Tile]:
    """Return tiles of one head that have at most `room` bytes together.

    `call` and `lse` belong to the head; `mean` is its picture of mean weights, and `top` its top
    keys. For blocks, at most the scores of one picture of everything are computed; for single
    weights, only the scores of the included parts.
    """
    if not plan or room <= 0:
        return []
    *blocks, exact = plan
    head = call, lse, mean, top
    found, is_complete = _tiles_of_level(*head, exact, room, room / 2 if blocks else room)
    if is_complete:
        return found
    left = room - sum(tile.nbytes for tile in found)
    for number, level in enumerate(blocks):
        share = left / (len(blocks) - number)
        own, _ = _tiles_of_level(*head, level, share, share, 1 / len(blocks))
        left -= sum(tile.nbytes for tile in own)
        found += own
    return found


def _tiles_of_level(
    call: CheckedCall,
    lse: Array,
    mean: Array,
    top: TopKeys,
    level: TileLevel,
    room: float,
    share: float,
    of_all: float = 1.0,
) -> tuple[list[Tile], bool]:
    """Return the first tiles of a level, and whether these are all.

    They have at most `share` bytes, unless all tiles seem to fit in `room`. There are at most the
    given part of all tiles.
    """
    places = _ordered(call, mean, top, level)
    count = min(len(places), int(np.ceil(of_all * level.rows * level.columns)))
    found: list[Tile] = []
    used = 0
    for start in range(0, count, _TILES_AT_ONCE):
        for tile in computed(call, lse, level, places[start : min(start + _TILES_AT_ONCE, count)]):
            used += tile.nbytes
            expected = used / (len(found) + 1) * count
            if used > room or (used > share and expected > room):
                return found, False
            found.append(tile)
    return found, len(found) == len(places)


def _ordered(
    call: CheckedCall, mean: Array, top: TopKeys, level: TileLevel
) -> list[tuple[int, int]]:
    """Return the rows and columns of the tiles that hold weight, the most important tiles first."""
    lengths = call.sizes.q_len, call.sizes.kv_len
    counts = level.rows, level.columns
    grid = [min(count, _FINEST_GRID) for count in counts]
    sizes = [np.diff(edges(*each)) for each in zip(lengths, mean.shape, strict=True)]
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.nan_to_num(mean.astype(np.float64) * sizes[0][:, None] * sizes[1], posinf=0)
    across = [
        _overlap(length, pixels, cells)
        for length, pixels, cells in zip(lengths, mean.shape, grid, strict=True)
    ]
    mass = across[0] @ sums @ across[1].T
    rest = np.maximum(mass - _of_top_keys(top, lengths, grid), 0)
    rows, columns = np.nonzero(mass)
    distance = np.abs(rows / grid[0] - columns / grid[1])
    # Tiles whose weights differ by less than about a percent are ordered by their distance from the
    # diagonal, where language models look. The rounding error of a sum without its largest parts is
    # of this size too.
    of_cells = mass[rows, columns]
    left = np.where(rest[rows, columns] > 0.01 * of_cells, rest[rows, columns], 0)
    with np.errstate(divide="ignore"):
        steps = [np.rint(-100 * np.log(each)) for each in (of_cells, left)]
    order = np.lexsort((columns, rows, distance, *steps))
    down, right = (count // cells for count, cells in zip(counts, grid, strict=True))
    return [
        (int(rows[at]) * down + i, int(columns[at]) * right + j)
        for at in order
        for i in range(down)
        for j in range(right)
    ]


def _of_top_keys(top: TopKeys, lengths: tuple[int, int], grid: list[int]) -> Array:
    """Return the weight of the top keys in each cell of a grid."""
    queries = np.broadcast_to(np.arange(lengths[0])[:, None], top.keys.shape)
    is_key = (top.keys >= 0) & np.isfinite(top.weights)
    row, column = (
        ((places[is_key] + 1) * cells - 1) // length
        for places, length, cells in zip((queries, top.keys), lengths, grid, strict=True)
    )
    weights = top.weights[is_key].astype(np.float64)
    return np.bincount(row * grid[1] + column, weights, grid[0] * grid[1]).reshape(grid)


def _overlap(length: int, pixels: int, cells: int) -> Array:
    """Return the share of each pixel in each cell, of shape (cells, pixels)."""
    of_pixels, of_cells = edges(length, pixels), edges(length, cells)
    first = np.maximum(of_cells[:-1, None], of_pixels[:-1])
    end = np.minimum(of_cells[1:, None], of_pixels[1:])
    return np.asarray(np.maximum(end - first, 0) / np.diff(of_pixels))


def computed(
    call: CheckedCall, lse: Array, level: TileLevel, places: list[tuple[int, int]]
) -> Iterator[Tile]:
    """Compute and pack tiles at some rows and columns of a level."""
    rows = edges(call.sizes.q_len, level.rows).tolist()
    columns = edges(call.sizes.kv_len, level.columns).tolist()
    bounds = [(rows[i], rows[i + 1], columns[j], columns[j + 1]) for i, j in places]
    regions = [(slice(a, b), slice(c, d)) for a, b, c, d in bounds]
    pictures = {
        reduce: pictures_of(call, (TILE, TILE), reduce, regions, lse)
        for reduce in (("max",) if level.is_exact else ("max", "mean"))
    }
    for number, own in enumerate(bounds):
        largest = pictures["max"][number]
        planes: dict[str, Array | Halves]
        if level.is_exact:
            weights = short_halves(largest)
            planes, facts = {"weights": weights}, [weights.exponent]
        else:
            planes = {reduce: levels(each[number]) for reduce, each in pictures.items()}
            facts = list(largest.shape)
        yield Tile(own, packed(planes)[0], facts)
