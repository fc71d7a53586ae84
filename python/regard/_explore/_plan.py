"""The sizes of pictures and pages, planned in advance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from regard._arguments.arrays import bytes_of
from regard._arguments.numbers import count, slice_ends
from regard._statistics.result import OF_KEYS, OF_QUERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from regard._explore._layers import Layer
    from regard._statistics.summary import SummaryRequest

DETAILS = (512, 256, 128)
LEAST_DETAIL, MOST_DETAIL = 16, 8192
TILE = 64  # the rows and columns of a tile, at most
_MAP_BYTES = 48e6
# The sizes of compressed noise relative to the raw bytes, and of base64 relative to its input.
_LEFT_OF_MAPS, _LEFT_OF_ROWS, _AS_TEXT = 0.8, 0.9, 4 / 3
_PROGRAM_BYTES, _THUMBNAIL_BYTES = 90_000, 6_000


class ExactRegion(NamedTuple):
    """A part of the weights of a head that a page contains exactly."""

    layer: int
    head: int
    queries: tuple[int, int]
    keys: tuple[int, int]

    @property
    def size(self) -> int:
        """The number of weights in the region."""
        return (self.queries[1] - self.queries[0]) * (self.keys[1] - self.keys[0])


class TileLevel(NamedTuple):
    """A level of finer pictures: their grid, and whether each pixel is a single weight."""

    rows: int
    columns: int
    is_exact: bool


class Plan(NamedTuple):
    """The planned content of a page."""

    lengths: tuple[int, int]  # q_len and kv_len
    shape: tuple[int, int]  # of a head's picture
    is_exact: bool  # whether a picture has one pixel for each weight
    regions: list[ExactRegion]
    bytes: int  # of the page, roughly
    heads: int
    shares: str  # the sizes of the parts of the page, in words
    levels: list[TileLevel]  # finer than the picture, the last one of single weights
    tile_bytes: int | None  # of all tiles, at most

    def __str__(self) -> str:
        (q_len, kv_len), heads = self.lengths, self.heads
        return f"a page of {heads} heads, {q_len} queries and {kv_len} keys ({self.shares})"

    def room_for_tiles(self, max_bytes: int, head_bytes: int) -> float:
        """Return the number of bytes for the tiles of a head that has `head_bytes` without them.

        By default, they at most double the page.
        """
        if self.tile_bytes is not None:
            return self.tile_bytes / self.heads
        return min(head_bytes, (max_bytes - self.bytes) / self.heads)

    def check(self, max_bytes: int) -> None:
        """Raise ValueError if the page would be too large."""
        if self.bytes > max_bytes:
            raise ValueError(
                f"max_bytes must be at least about {bytes_of(self.bytes)} for {self}, got "
                f"{bytes_of(max_bytes)}: show fewer heads, lower detail, top_k, tile_bytes or "
                "the number of statistics, or raise max_bytes"
            )


def plan_of(
    layers: Sequence[Layer],
    request: SummaryRequest,
    texts: Mapping[str, Any] | None,
    detail: int | None,
    regions: Iterable[Any] | None = None,
    tile_bytes: int | None = None,
) -> Plan:
    """Return the plan of a page that shows the requested statistics and the texts."""
    q_len, kv_len = layers[0].call.sizes.q_len, layers[0].call.sizes.kv_len
    heads = sum(layer.heads for layer in layers)

    def bytes_of_maps(side: int) -> float:
        height, width = min(side, q_len), min(side, kv_len)
        return float(heads * 2 * height * width) * _LEFT_OF_MAPS * _AS_TEXT

    if detail is None:
        fitting = [side for side in DETAILS if bytes_of_maps(side) <= _MAP_BYTES]
        side = fitting[0] if fitting else DETAILS[-1]
    else:
        side = count("detail", detail, minimum=LEAST_DETAIL, maximum=MOST_DETAIL)
    shape = min(side, q_len), min(side, kv_len)
    wanted = _regions(regions, layers, q_len, kv_len)
    bytes_per_row = 4 * request.top_k + 2 * sum(request.wanted[name] for name in OF_QUERIES)
    bytes_per_key = 2 * sum(request.wanted[name] for name in OF_KEYS)
    rows = heads * (q_len * bytes_per_row + kv_len * bytes_per_key)
    text_bytes = _bytes_of(texts)
    exact = 2 * sum(region.size for region in wanted)
    total = bytes_of_maps(side) + (rows + exact) * _LEFT_OF_ROWS * _AS_TEXT
    total += _PROGRAM_BYTES + heads * _THUMBNAIL_BYTES + text_bytes
    levels = _finer_levels((q_len, kv_len), shape)
    if tile_bytes is not None:
        tile_bytes = count("tile_bytes", tile_bytes)
    of_tiles = (tile_bytes or 0) if levels else 0
    total += of_tiles
    parts = {
        "detail": bytes_of_maps(side),
        "top_k and statistics": rows * _LEFT_OF_ROWS * _AS_TEXT,
        "regions": exact * _LEFT_OF_ROWS * _AS_TEXT,
        "tiles": of_tiles,
        "tokens": text_bytes,
    }
    shares = ", ".join(f"{name} {bytes_of(round(part))}" for name, part in parts.items() if part)
    lengths = q_len, kv_len
    is_exact = shape == lengths
    return Plan(lengths, shape, is_exact, wanted, round(total), heads, shares, levels, tile_bytes)


def _bytes_of(texts: Mapping[str, Any] | None) -> int:
    """Return the approximate size of texts in bytes; characters beyond ASCII cost more bytes."""
    lists = [each for each in (texts or {}).values() if isinstance(each, list)]
    return sum(len(text) * (1 if text.isascii() else 6) + 3 for each in lists for text in each)


def _finer_levels(lengths: tuple[int, int], shape: tuple[int, int]) -> list[TileLevel]:
    """Return the levels that have at least twice the resolution of the picture, or all weights."""
    found: list[TileLevel] = []
    parts = 1
    while shape != lengths and not (found and found[-1].is_exact):
        fine = [min(parts * TILE, length) for length in lengths]
        if all(
            pixels == length or pixels >= 2 * coarse
            for pixels, coarse, length in zip(fine, shape, lengths, strict=True)
        ):
            # A power of two of parts that have at most as many entries as a tile has rows.
            most = (1 << max(0, (length - 1) // TILE).bit_length() for length in lengths)
            rows, columns = (min(parts, each) for each in most)
            found.append(TileLevel(rows, columns, tuple(fine) == lengths))
        parts *= 2
    return found


def _regions(
    regions: Iterable[Any] | None, layers: Sequence[Layer], q_len: int, kv_len: int
) -> list[ExactRegion]:
    if regions is not None and not isinstance(regions, Iterable):
        raise TypeError(
            f"regions must be an iterable of tuples of slices, got {type(regions).__name__}"
        )
    found = []
    for number, given in enumerate(() if regions is None else regions):
        name = f"regions[{number}]"
        if not isinstance(given, tuple) or len(given) not in (2, 4):
            raise TypeError(
                f"{name} must be a pair of slices (queries, keys) or (layer, head, queries, keys), "
                f"got {given!r}"
            )
        queries, keys = (
            _ends(name, part, length)
            for part, length in zip(given[-2:], (q_len, kv_len), strict=True)
        )
        if len(given) == 4:
            layer = count(f"{name}'s layer", given[0], maximum=len(layers) - 1)
            pairs = [(layer, count(f"{name}'s head", given[1], maximum=layers[layer].heads - 1))]
        else:
            pairs = [(i, head) for i, layer in enumerate(layers) for head in range(layer.heads)]
        found += [ExactRegion(layer, head, queries, keys) for layer, head in pairs]
    return found


def _ends(name: str, part: Any, length: int) -> tuple[int, int]:
    if not isinstance(part, slice):
        raise TypeError(f"{name} must have slices of queries and keys, got {type(part).__name__}")
    start, stop = slice_ends(name, part, length)
    if start == stop:
        raise ValueError(f"{name} must have slices that select something of {length}, got {part}")
    return start, stop
